import torch, quickfuse
quickfuse.config.raise_internal_errors=True
quickfuse.set_logs(graph_breaks=True)
def cmp(name,f,*a):
    c=quickfuse.compile(f); e=f(*a); r=c(*a)
    n=(e!=r)&~(e.isnan()&r.isnan()); print(name, 'differ %.4f'%n.float().mean().item(), 'max rel %.2e'%(((e-r).abs()/(e.abs()+1e-30))[~e.isnan()].max().item()), 'kernels', c.specialisations[0].kernels if c.specialisations else None)
torch.manual_seed(0)
t=torch.arange(1,1001,device='cuda',dtype=torch.float32)
x,y,z=[torch.randn(100000,device='cuda') for _ in range(3)]
cmp('0.9**t',lambda t:0.9**t,t); cmp('0.999**t',lambda t:0.999**t,t); cmp('1-0.999**t',lambda t:1-0.999**t,t)
lr=torch.tensor(0.01,device='cuda')
cmp('lr/t',lambda t,lr:lr/t,t,lr); cmp('sqrt',lambda x:x.abs().sqrt(),x); cmp('div',lambda x,y:x/y,x,y); cmp('recip',lambda x:x.reciprocal(),x)
cmp('addcmul',lambda x,y,z:torch.addcmul(x,y,z,value=0.001),x,y,z);cmp('addcdiv',lambda x,y,z:torch.addcdiv(x,y,z,value=0.001),x,y,z);cmp('addcdiv1',lambda x,y,z:torch.addcdiv(x,y,z),x,y,z)
cmp('lerp',lambda x,y:torch.lerp(x,y,0.1),x,y); cmp('lerp.9',lambda x,y:torch.lerp(x,y,0.9),x,y); cmp('add a',lambda x,y:torch.add(x,y,alpha=0.3),x,y); cmp('div s',lambda x:x/0.317,x); cmp('mul s',lambda x:x*0.317,x)
for n in 'foreach_addcdiv foreach_addcmul foreach_lerp foreach_div'.split(): pass
def fa(x,y,z):
    p=[x.clone()]; torch._foreach_addcdiv_(p,[y],[z]); return p[0]
cmp('fe addcdiv',fa,x,y,z)
def fs(x,y,z):
    p=[x.clone()]; torch._foreach_addcdiv_(p,[y],[z],[-0.0123]); return p[0]
cmp('fe addcdiv list',fs,x,y,z)
def fm(x,y,z):
    p=[x.clone()]; torch._foreach_addcmul_(p,[y],[z],0.001); return p[0]
cmp('fe addcmul',fm,x,y,z)
def fl(x,y):
    p=[x.clone()]; torch._foreach_lerp_(p,[y],0.1); return p[0]
cmp('fe lerp',fl,x,y)
def fd(x):
    p=[x.clone()]; torch._foreach_div_(p,[0.317]); return p[0]
cmp('fe div list',fd,x)
def fsq(x):
    return torch._foreach_sqrt([x.abs()])[0]
cmp('fe sqrt',fsq,x)
def fpw(t):
    return torch._foreach_pow(0.999,[t])[0]
cmp('fe pow',fpw,t)
for n in 'exp log sin cos tanh sigmoid erf rsqrt expm1 log1p'.split(): cmp(n,lambda x,n=n:getattr(torch,n)(x.abs()),x)
