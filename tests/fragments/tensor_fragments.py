"""Fragments of programs about unusual tensors and gradients inside of the program.

A fragment is (definitions, statements). The statements read and set the tensor `x`, read the number `k`, and add to the
list `log`; `@` stands for a number that no other fragment of the program has.
"""

FRAGMENTS = [
    ("", """
y = torch.complex(x, x * 2)
log.append(y.conj().is_conj())
log.append(y.conj())
log.append(y.conj().imag)
log.append(y.conj().imag.is_neg())
log.append(y.abs())
log.append(y.angle())
log.append(y.conj() @ y.T)
x = x + y.conj().imag + torch.view_as_real(y)[..., 0]
"""),
    ("", """
y = torch._neg_view(x)
log.append((y.is_neg(), y + 1, y.resolve_neg()))
x = x + y.clone() * 0.5
"""),
    ("", """
y = x.new_zeros(0, 4)
log.append(y.sum())
log.append(y.mean(0))
log.append(torch.cat([y, x.detach()]).shape)
log.append(y.prod())
log.append(y.softmax(0))
log.append((y @ x.detach().T).shape)
log.append(torch.stack([y, y]).shape)
log.append(y.any())
log.append(y.all())
try:
    y.max()
except Exception as e:
    log.append((type(e).__name__, str(e)))
try:
    y.argmax(0)
except Exception as e:
    log.append((type(e).__name__, str(e)))
"""),
    ("", """
s = x.sum() * 0 + k
log.append(s)
log.append(s.shape)
log.append(s + torch.tensor(2))
log.append(s.expand(2))
log.append(s.view(1))
log.append(s.reshape(()))
log.append(s[None])
log.append(s.item() if not s.requires_grad else 0)
x = x * s.cos()
try:
    s[0]
except Exception as e:
    log.append((type(e).__name__, str(e)))
try:
    len(s)
except Exception as e:
    log.append((type(e).__name__, str(e)))
try:
    iter(s)
except Exception as e:
    log.append((type(e).__name__, str(e)))
"""),
    ("", """
y = x.detach().to_sparse()
log.append(y.coalesce().values())
log.append(y.is_sparse)
log.append((y * 2).to_dense())
log.append(torch.sparse.mm(y, x.detach().T))
x = x + y.to_dense()
"""),
    ("", """
y = torch.quantize_per_tensor(x.detach().float(), 0.1, 3, torch.qint8)
log.append((y.int_repr(), y.dequantize(), y.q_scale()))
x = x + y.dequantize()
"""),
    ("", """
b = torch.zeros(6, dtype=x.dtype)
v = b.as_strided((2, 3), (1, 2))
w = b.unfold(0, 3, 1)
v.add_(k + 1)
log.append((b, w, v))
b[2:4].mul_(3)
log.append(w.sum(1))
x = x + b.sum()
"""),
    ("", """
a = torch.zeros(3, dtype=x.dtype).expand(2, 3)
try:
    a.add_(1)
except RuntimeError as e:
    log.append(str(e))
x = x + a.sum()
"""),
    ("", """
y = x.detach().clone()
a, b = y.split(2, 1)
a.copy_(b)
b.zero_()
log.append((y, a, b))
c = y.unbind(0)[1]
c += 1
log.append(y)
y.T[0].neg_()
log.append(y)
x = x - y
"""),
    ("", """
y = x.detach().to(torch.float8_e4m3fn)
log.append(y.dtype)
log.append(y.to(torch.float32))
log.append(y.view(torch.uint8 if y.element_size() == 1 else torch.int16).sum())
log.append(y.nbytes)
x = x + y.to(x.dtype)
try:
    log.append((y + y).float())
except Exception as e:
    log.append((type(e).__name__, str(e)))
try:
    log.append((y * 2).to(torch.float32))
except Exception as e:
    log.append((type(e).__name__, str(e)))
try:
    log.append((y.sum().float(), y.max().float()))
except Exception as e:
    log.append((type(e).__name__, str(e)))
"""),
    ("", """
y = (x.detach() * 3 + 5).abs().to(torch.uint16)
try:
    r = torch.eye(3, dtype=y.dtype) @ y
    log.append((r, getattr(r, 'dtype', None)))
except Exception as e:
    log.append((type(e).__name__, str(e)))
"""),
    ("", """
y = (x.detach() * 3 + 5).abs().to(torch.uint16)
try:
    r = y // 2
    log.append((r, getattr(r, 'dtype', None)))
except Exception as e:
    log.append((type(e).__name__, str(e)))
"""),
    ("", """
x = x + torch.func.vmap(lambda r: r.sin() * k)(x)
"""),
    ("", """
y, d = torch.func.jvp(lambda t: t.sin(), (x,), (x * 0 + 1,))
x = y + d
"""),
    ("", """
w = torch.ones(4, dtype=x.dtype, requires_grad=True)
y = w * 2
y.retain_grad()
seen = []
hd = y.register_hook(lambda g: seen.append(g.clone()) or g * 2)
(y * x.detach()).sum().backward()
log.append((w.grad, y.grad, seen))
hd.remove()
"""),
    ("", """
w = torch.ones(4, dtype=x.dtype, requires_grad=True)
y = w.exp()
y.add_(1)
try:
    y.sum().backward()
    log.append(w.grad)
except RuntimeError as e:
    log.append(str(e)[:100])
"""),
    ("", """
class Fn(torch.autograd.Function):

    @staticmethod
    def forward(ctx, t, n):
        ctx.n = n
        ctx.save_for_backward(t)
        ctx.mark_non_differentiable()
        return t * n

    @staticmethod
    def backward(ctx, g):
        t, = ctx.saved_tensors
        log.append('bw')
        return (g * ctx.n, None)
w = x.detach().requires_grad_()
y = Fn.apply(w, k + 2)
y.sum().backward()
log.append((w.grad, y.requires_grad))
x = x + y.detach()
"""),
    ("", """
with torch.autograd.graph.saved_tensors_hooks(lambda t: (log.append('pack'), t)[1], lambda t: (log.append('unpack'), t)[1]):
    w = torch.ones(4, dtype=x.dtype, requires_grad=True)
    y = (w * w.sin()).sum()
y.backward()
x = x + w.grad
"""),
    ("", """
with torch.random.fork_rng():
    torch.manual_seed(k)
    y = torch.rand(4, dtype=x.dtype)
x = x + y + torch.rand(1)
"""),
    ("", """
with torch.autocast('cpu', torch.bfloat16):
    y = x.float() @ torch.ones(4, 4)
    log.append(y.dtype)
    y = y.exp()
    log.append(y.dtype)
x = x + y.to(x.dtype)
"""),
    ("", """
try:
    torch.add(x.detach(), 1, out=torch.zeros(3, 4, dtype=torch.int64))
except RuntimeError as e:
    log.append(str(e))
o = torch.zeros(3, 4, dtype=torch.float32)
torch.add(x.detach(), 1, out=o)
log.append(o)
try:
    torch.clamp(x.detach(), 0, 1, out=o)
    log.append(o)
except RuntimeError as e:
    log.append(str(e))
try:
    torch.neg(x.detach(), out=o)
    log.append(o)
except RuntimeError as e:
    log.append(str(e))
try:
    torch.round(x.detach(), out=o)
    log.append(o)
except RuntimeError as e:
    log.append(str(e))
"""),
    ("", """
i = torch.tensor([0, 2])
y = x.detach().clone()
y.index_add_(0, i, y[:2] * 2)
y.scatter_(1, torch.zeros(3, 1, dtype=torch.long), 5.0)
y.index_put_((i, i), torch.tensor(7.0, dtype=y.dtype), accumulate=True)
log.append(y)
x = x + y.take(torch.tensor([0, 5])).sum()
"""),
    ("", """
t = x.detach()
for row in t:
    log.append(row.sum())
for a, b in zip(t, t.T):
    log.append(a.sum() + b.sum())
a, b, c = t
x = x + a * b - c
log.append((len(t), t.tolist()[0][0], 1.0 in t, bool((t > 0).any()), t[0, 0].item()))
"""),
]
