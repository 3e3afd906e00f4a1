"""Fragments of programs about classes: descriptors, metaclasses, context managers, enumerations, the end of objects.

A fragment is (definitions, statements). The statements read and set the tensor `x`, read the number `k`, and add to the
list `log`; `@` stands for a number that no other fragment of the program has.
"""

#: A class whose objects log their end.
_LOGS_ITS_END = """
class De@:

    def __init__(s, n, log):
        s.n = n
        s.log = log

    def __del__(s):
        s.log.append(('del', s.n))
"""

FRAGMENTS = [
    ("""
class Tag@(contextlib.ContextDecorator):

    def __init__(s, n, log):
        s.name = n
        s.log = log
        s.n = len(n)

    def __enter__(s):
        s.log.append(('enter', s.name))
        return s

    def __exit__(s, *a):
        s.log.append(('exit', s.name))
        return False
""", """
with Tag@('a', log) as t, Tag@('b', log):
    x = x + t.n
    if k == 2:
        log.append('two')
"""),
    ("""
@dataclasses.dataclass
class P@:
    x: int
    y: torch.Tensor
""", """
match P@(k, x):
    case P@(0, y=t):
        x = t + 10
    case P@(a, b) if a > 1:
        x = b * a
    case P@(x=1):
        x = x + 100
    case _:
        log.append('no')
"""),
    ("""
class Obj@:
    pass
""", """
o = Obj@()
o.a = x
o.b = k
del o.a
try:
    o.a
except AttributeError as e:
    log.append(str(e))
log.append(sorted(vars(o)))
try:
    del o.zz
except AttributeError as e:
    log.append(str(e))
"""),
    ("""
class Desc@:

    def __set_name__(s, o, n):
        s.n = '_' + n

    def __get__(s, i, o):
        return s.n if i is None else i.__dict__[s.n] * 2

    def __set__(s, i, v):
        i.__dict__[s.n] = v

class Base@:
    subs = []

    def __init_subclass__(cls, tag=None, **kw):
        super().__init_subclass__(**kw)
        cls.tag = tag
        Base@.subs.append(cls.__name__)
""", """
class B@(Base@, tag='q'):
    d = Desc@()
b = B@()
b.d = x
x = b.d + 1
log.append((B@.tag, B@.d, Base@.subs[-1], b.__dict__.keys() - {'_d'}))
"""),
    ("""
class Meta@(type):
    n = 0

    def __new__(m, name, bases, ns, **k):
        Meta@.n += 1
        ns['made'] = name
        return super().__new__(m, name, bases, ns)

    def __call__(cls, *a):
        o = super().__call__(*a)
        o.extra = 1
        return o

    def __add__(cls, v):
        return v * 2

    def __len__(cls):
        return 7

    def __contains__(cls, n):
        return n in cls.__dict__

    def __instancecheck__(cls, o):
        return o == 5 or type.__instancecheck__(cls, o)
""", """
class C@(metaclass=Meta@):
    a = 1

    def f(self, t):
        return t + self.a
c = C@()
x = c.f(x)
log.append((C@.made, C@ + 1, len(C@), 'a' in C@, isinstance(5, C@), Meta@.n > 0))
"""),
    ("""
class Cp@:
    calls = 0

    @functools.cached_property
    def big(s):
        s.calls += 1
        return 10
""", """
o = Cp@()
x = x + o.big + o.big
log.append((o.calls, 'big' in vars(o)))
del o.big
o.big
log.append(o.calls)
o.big = 3
log.append(o.big)
"""),
    ("""
class Sd@:

    @functools.singledispatchmethod
    def go(s, v):
        return 'default'

    @go.register
    def _(s, v: int):
        return v + 1

    @go.register(str)
    def _(s, v):
        return v * 2

    @go.register
    def _(s, v: torch.Tensor):
        return v.cos()

    @go.register(list)
    @staticmethod
    def _(v):
        return len(v)
""", """
o = Sd@()
x = o.go(x)
log.append((o.go(k), o.go('s'), o.go(2.5), o.go([1])))
"""),
    ("""
@dataclasses.dataclass
class Cfg@:
    scale: float = 2.0
    name: str = 'n'
    items_: list = dataclasses.field(default_factory=lambda: [1, 2])
    total: float = dataclasses.field(init=False, default=0)
    hid: int = dataclasses.field(default=3, repr=False, compare=False)
    ini: dataclasses.InitVar[int] = 4

    def __post_init__(s, ini):
        s.total = s.scale * ini
""", """
o = Cfg@(scale=k)
o2 = dataclasses.replace(o, name='z')
x = x * o2.scale + len(o.items_)
log.append(o)
log.append(o2)
log.append(o == o2)
log.append(dataclasses.asdict(o))
log.append(dataclasses.astuple(o2))
log.append(o.total)
log.append([f.name for f in dataclasses.fields(o)])
"""),
    (_LOGS_ITS_END, """
o = De@('a', log)
r = weakref.ref(o)
log.append(r() is o)
del o
log.append(r())
x = x + 1
"""),
    (_LOGS_ITS_END, """
o = De@('a', log)
p = De@('b', log)
o = p
log.append('re')
p = None
log.append('p none')
x = x * 2
o = None
log.append('end')
"""),
    ("""
class Ob@:
    pass
""", """
o = Ob@()
fi = weakref.finalize(o, log.append, ('fin', k))
log.append(fi.alive)
del o
log.append(fi.alive)
x = x - 1
"""),
    ("""
class Ob@:
    pass
""", """
d = weakref.WeakValueDictionary()
o = Ob@()
d['a'] = o
log.append(len(d))
del o
log.append(len(d))
s = weakref.WeakSet()
q = Ob@()
s.add(q)
log.append(len(s))
x = x + len(s)
"""),
    (_LOGS_ITS_END, """
def ex@():
    o = De@('loc', log)
    if k == 1:
        raise ValueError('q')
    return x + 1
try:
    x = ex@()
except ValueError as e:
    log.append('h')
log.append('end')
"""),
    ("", """
class Bad:

    def __enter__(s):
        raise ValueError('enter')

    def __exit__(s, *a):
        log.append('never')
try:
    with Bad():
        pass
except ValueError as e:
    log.append(str(e))

class Bad2:

    def __enter__(s):
        pass

    def __exit__(s, *a):
        raise TypeError('exit')
try:
    with Bad2():
        1 / 0
except TypeError as e:
    log.append((str(e), repr(e.__context__)))
"""),
    ("", """
def outer():
    a = x

    class K:
        b = a

        def m(self):
            return (__class__.__name__, a + self.b)
    return K().m()
n, x = outer()
log.append(n)
"""),
]
