"""Fragments of programs about names and the flow of control: recursion, generators, exceptions, patterns, closures.

A fragment is (definitions, statements). The statements read and set the tensor `x`, read the number `k`, and add to the
list `log`; `@` stands for a number that no other fragment of the program has.
"""

FRAGMENTS = [
    ("", """
def fact@(n):
    return x * 0 + 1 if n <= 0 else fact@(n - 1) * n
x = x + fact@(k + 2)
"""),
    ("", """
def g@():
    t = x
    while True:
        r = (yield t)
        if r is None:
            return t * 3
        t = t + r
g = g@()
a = next(g)
b = g.send(2.0)
log.append(('send', float(b.sum())))
try:
    g.send(None)
except StopIteration as e:
    x = e.value
"""),
    ("", """
def g@():
    try:
        yield x
        yield (x + 1)
    except ValueError as e:
        log.append(str(e))
        yield (x * 5)
    finally:
        log.append('closed')
g = g@()
next(g)
x = g.throw(ValueError('v')) if k else x
g.close()
"""),
    ("""
def inner@(t, log):
    try:
        yield t
        yield (t + 1)
        return 'done'
    finally:
        log.append('inner closed')
""", """
def g@():
    r = (yield from inner@(x, log))
    log.append(r)
    yield (x * 7)
x = sum(g@())
"""),
    ("""
def gen@(t, log):
    try:
        for i in range(3):
            yield (t * i)
    finally:
        log.append('fin')
""", """
for i, t in enumerate(gen@(x, log)):
    if i == k:
        break
    x = x + t
log.append('after')
"""),
    ("", """
async def co@(t):
    return t + 1
c = co@(x)
try:
    c.send(None)
except StopIteration as e:
    x = e.value
"""),
    ("""
cv@ = contextvars.ContextVar('cv@', default=5)
""", """
cv@.set(k)
tok = cv@.set(k + 1)
x = x + cv@.get()
cv@.reset(tok)
log.append(cv@.get())
ctx = contextvars.copy_context()
x = ctx.run(lambda t: (cv@.set(9), t + cv@.get())[1], x)
log.append((cv@.get(), ctx[cv@]))
"""),
    ("", """
try:
    try:
        raise ValueError(k)
    except ValueError as e:
        raise KeyError('b') from e
except KeyError as e:
    log.append((repr(e.__cause__), repr(e.__context__), e.__suppress_context__))
"""),
    ("", """
def fin@():
    for i in range(4):
        try:
            if i == k:
                continue
            if i == 3:
                break
            log.append(i)
        finally:
            log.append(('f', i))
    else:
        log.append('else')
    return x
x = fin@()
"""),
    ("", """
try:
    raise ExceptionGroup('g', [ValueError(1), TypeError(2), ExceptionGroup('h', [ValueError(k)])])
except* ValueError as eg:
    log.append((str(eg), [repr(e) for e in eg.exceptions]))
    x = x + 1
except* TypeError as eg:
    log.append(repr(eg.exceptions))
"""),
    ("", """
with contextlib.ExitStack() as st:
    st.callback(log.append, ('cb', k))
    v = st.enter_context(contextlib.nullcontext(3))
    x = x * v
    st.push(lambda *a: log.append(('push', a[0] and a[0].__name__)) or True)
    st.enter_context(torch.no_grad())
    log.append(torch.is_grad_enabled())
    if k:
        raise ValueError('st')
log.append(torch.is_grad_enabled())
"""),
    ("", """
match [k, (x, 'a'), {'n': 3, 'm': x}]:
    case [0, [t, 'a'], {'n': n, **rest}]:
        x = t + n
        log.append(sorted(rest))
    case [1 | 2 as j, [_, str() as s], {'m': t}] if j < 2:
        x = t * 2
        log.append((j, s))
    case [int(q), *others]:
        x = x - q
        log.append(len(others))
    case _:
        log.append('none')
"""),
    ("", """
fs = [lambda t: t + i for i in range(3)]
x = fs[0](x) + fs[k](x)
log.append([f.__closure__[0].cell_contents for f in fs])
"""),
    ("""
GL@ = 0
""", """
def bump@():
    global GL@
    GL@ += 1
    return GL@
x = x + bump@()
bump@()
log.append(GL@)
"""),
    ("", """
global NEW@
try:
    NEW@
except NameError as e:
    log.append(str(e))
NEW@ = k
x = x + NEW@
if k == 1:
    del NEW@
"""),
    ("", """
def mk@():
    v = x

    def get():
        return v

    def put(t):
        nonlocal v
        v = t

    def rm():
        nonlocal v
        del v
    return (get, put, rm)
get, put, rm = mk@()
put(get() + 1)
x = get() * 2
rm()
try:
    get()
except NameError as e:
    log.append(str(e))
"""),
    ("", """
u = x + 1
del u
try:
    u
except UnboundLocalError as e:
    log.append(str(e))
"""),
    ("", """
log.append(type(x) is torch.Tensor)
log.append(isinstance(x, torch.nn.Parameter))
log.append(callable(x.sin))
log.append(x.sin.__name__)
log.append(issubclass(bool, int))
"""),
    ("", """
def deco@(n):

    def w(f):

        @functools.wraps(f)
        def g(*a, **kw):
            log.append((n, f.__name__))
            return f(*a, **kw) + n
        return g
    return w

@deco@(1)
@deco@(k)
def tgt@(t):
    'doc'
    return t
x = tgt@(x)
log.append((tgt@.__name__, tgt@.__doc__, tgt@.__wrapped__.__name__))
"""),
    ("", """
x.foo = k
log.append((x.foo, hasattr(x, 'bar')))
x = x + x.foo
"""),
    ("", """
def hd@(*a):
    raise TimeoutError('sig')
old = signal.signal(signal.SIGUSR1, hd@)
try:
    x = x + 1
    signal.raise_signal(signal.SIGUSR1)
    x = x * 100
except TimeoutError as e:
    log.append(str(e))
finally:
    signal.signal(signal.SIGUSR1, old)
"""),
    ("", """
global CNT@
CNT@ = globals().get('CNT@', 0) + 1
log.append(CNT@)
globals()['DYN@'] = k
log.append(DYN@)
x = x + DYN@
log.append('CNT@' in globals())
"""),
]
