import time, timeit, torch, quickfuse, sys
quickfuse.config.raise_internal_errors = True
quickfuse.set_logs(graph_breaks=True, recompiles=True)
def gpt2():
    s=[(50257,768),(1024,768)]
    for _ in range(12):
        s+=[(768,),(768,),(768,2304),(2304,),(768,768),(768,),(768,),(768,),(768,3072),(3072,),(3072,768),(768,)]
    return s+[(768,),(768,)]
def mk(shapes, **kw):
    ps=[torch.nn.Parameter(torch.randn(s,device='cuda')) for s in shapes]
    for p in ps: p.grad=torch.randn_like(p)
    return torch.optim.Adam(ps, lr=1e-3, **kw)
a=torch.empty(2**29,device='cuda'); b=torch.empty_like(a)
def wall(f,n):
    for _ in range(3): f()
    ts=[]
    for _ in range(7):
        torch.cuda.synchronize(); t=time.perf_counter()
        for _ in range(n): f()
        torch.cuda.synchronize(); ts.append((time.perf_counter()-t)/n)
    return sorted(ts)[3]*1e6
t=wall(lambda: b.copy_(a),20); bw=a.numel()*8/t*1e6/1e12; print('copy TB/s',bw)
for name,shapes in (("10x1024^2",[(1024,1024)]*10),("1000x64^2",[(64,64)]*1000)):
    o=mk(shapes); f=quickfuse.compile(lambda: o.step()); quickfuse.logs.reset_stage_seconds()
    torch.cuda.synchronize(); t=time.perf_counter(); f(); torch.cuda.synchronize(); cold=time.perf_counter()-t
    print(name,'cold %.2f'%cold, {k:round(v,3) for k,v in quickfuse.logs.stage_seconds.items()}, 'kernels', f.specialisations[0].kernels if f.specialisations else None)
    fu=mk(shapes,fused=True); fu.step()
    n=sum(p.numel() for p in o.param_groups[0]['params'])
    w=wall(f,50); wf=wall(fu.step,20)
    # host only
    torch.cuda.synchronize(); t=time.perf_counter()
    for _ in range(20): f()
    h=(time.perf_counter()-t)/20*1e6; torch.cuda.synchronize()
    print(name,'quickfuse %.1f us, fused %.1f us, host %.1f us, limit %.1f us, %.1f%% of copy'%(w,wf,h,n*28/bw/1e6, n*28/w*1e6/1e12/bw*100))
    import re
    sp=f.specialisations[0]; lines=sp.glue.source.split('\n'); out=[lines[0],'    import time as _time','    _T=[]']
    for l in lines[1:]:
        ind=re.match(r' *',l).group()
        if l.strip() and not l.strip().startswith(('try','except','else','return','if _placer')): out.append(ind+'_T.append((_time.perf_counter(),%r))'%l.strip()[:70])
        out.append(l)
    out=[x.replace('return None','return _T+[(_time.perf_counter(),"end")]') for x in out]
    exec('\n'.join(out),sp.glue.constants); fn=sp.glue.constants[sp.glue._name()]
    for _ in range(5): r=fn()
    for x in sorted([(b[0]-a[0],a[1]) for a,b in zip(r,r[1:])],reverse=True)[:10]: print('   %.1f us %s'%(x[0]*1e6,x[1]))
