"""Templates of assignments and of statements that change an object. See templates.py for the holes."""

from __future__ import annotations

from programs.templates import parse_statements

ASSIGNMENTS = parse_statements("""
[8 assign]
<mut int> = <int> % 13

[3 augmented]
<mut int> += <int> % 5

[2 augmented]
<mut int> -= <small>

[1 augmented]
<mut int> //= 2

[2 augmented]
<mut float> = <float> % 3.0

[1 augmented]
<mut str> += <str>[:2]

[1 assign]
<mut str> = <str>[-9:]

[8 assign-tensor]
<mut mat> = <mat>

[2 assign-tensor]
<mut vec> = <vec>

[3 assign-tensor]
<mut scal> = <scal>.clamp(-9, 9)

[1 assign]
<mut ints> = <ints>

[1 assign]
<mut mats> = <mats>

[2 assign]
<mut opt> = <opt>

[3 alias]
<new ints> = <var ints>

[2 alias]
<new mat> = <var mat>

[1 alias]
<new matmap> = <var matmap>

[1 alias]
<new ints> = <new:a ints> = [<int>]
<a>.append(<int>)

[1 alias]
<new nested> = [<var:a ints>, <a>, <ints>]

[1 alias]
<new mats> = [<var:a mat>, <mat>, <a>]

[1 alias@methods]
<new box> = <var box>

[2 unpack]
<new int>, <new int> = <int>, <int>

[2 unpack]
<new int>, *<new ints> = [<int>, *<ints>]

[1 unpack]
*<new ints>, <new int> = (*<triple>, <int>)

[1 unpack]
(<new int>, <new int>), <new mat> = <triple>[:2], <mat>

[2 unpack]
<new mat>, <new int> = <couple>

[1 unpack]
<new mat>, <new int> = <pair>

[1 unpack-tensor]
<new vec>, *<new row> = <mat>

[1 unpack]
<new int>, <new int> = <mat>.shape

[2 swap]
<mut:a int>, <mut:b int> = <b>, <a>

[1 swap]
<mut:a mat>, <mut:b mat> = <b>, <a>

[1 swap]
<var:a ints>[:2] = <a>[1::-1]

[2 del]
<new:a int> = <int>
LOG.append(<a>)
del <a>

[1 del-item]
if <var:a ints>:
    del <a>[0]

[1 del-item]
if 'a' in <var:a intmap>:
    del <a>['a']

[1 del-item]
del <var ints>[1:]

[2 global-write@global]
COUNT += <int> % 5

[1 global-write@global]
COUNT = <int> % 13

[1 global-write@global]
SCALE = <float> % 2.0

[2 global-mutate]
LOG.append(<int>)

[1 global-mutate]
LOG.append(<str>)

[1 global-mutate]
TABLE[<key>] = <int>

[1 global-mutate]
TABLE['n'] = TABLE.get('n', 0) + 1

[1 global-tensor]
BIAS.add_(<float>).clamp_(-1, 1)

[1 import]
import math as m
<new float> = m.floor(<float>) * 0.5

[1 import]
from operator import add as plus
<new mat> = plus(<mat>, <mat>)

[1 annotated]
<new int>: int = <int>

[1 pass]
pass
""")

MUTATIONS = parse_statements("""
[5 list-mutate]
<var ints>.append(<int>)

[2 list-mutate]
<var ints>.extend(<ints>[:2])

[1 list-mutate]
<var ints>.insert(0, <int>)

[1 list-mutate]
<mut ints> += [<int>]

[1 list-mutate]
<var ints>.sort()

[1 list-mutate]
<var ints>.reverse()

[1 list-mutate]
<var ints>.clear()

[1 list-mutate]
if <int> in <var:a ints>:
    <a>.remove(<a>[0])

[2 setitem]
if <var:a ints>:
    <a>[-1] = <int>

[1 slice-assign]
<var ints>[1:2] = <ints>[:2]

[1 augmented-item]
if <var:a ints>:
    <a>[0] += <small>

[3 list-mutate]
<var mats>.append(<mat>)

[1 setitem]
if <var:a mats>:
    <a>[0] = <mat>

[1 augmented-item]
if <var:a mats>:
    <a>[-1] += <mat>

[1 list-mutate]
<var nested>.append(<ints>)

[1 list-mutate]
if <var:a nested>:
    <a>[0].append(<int>)

[3 dict-mutate]
<var intmap>[<key>] = <int>

[2 dict-mutate]
<var:a intmap>[<key>] = <a>.get(<key>, 0) + 1

[1 dict-mutate]
<var intmap>.update(<intmap>)

[1 dict-mutate]
<mut intmap> |= {<key>: <int>}

[3 dict-mutate]
<var matmap>[<key>] = <mat>

[1 dict-mutate]
<var matmap>.update(b=<mat>)

[1 dict-mutate]
<var intmap>.pop(<key>, None)

[1 dict-mutate]
<var idmap>[<int>] = <mat>

[2 set-mutate]
<var intset>.add(<int>)

[1 set-mutate]
<var intset>.discard(<int>)

[1 set-mutate]
<mut intset> |= {<int>}

[1 set-mutate]
<var intset>.update(<ints>)

[2 deque-mutate]
<var matqueue>.append(<mat>)

[1 deque-mutate]
<var intqueue>.appendleft(<int>)

[1 deque-mutate]
<var intqueue>.rotate(1)

[1 deque-mutate]
<var intqueue>.extend(<ints>)

[2 defaultdict-mutate]
<var groups>[<key>].append(<int>)

[2 defaultdict-mutate]
<var counts>[<int> % 3] += 1

[2 setattr@classes]
<var box>.count += <int> % 3

[2 setattr@classes]
<var box>.value = <mat>

[1 setattr@classes]
<var:a box>.value += <mat>

[1 setattr@classes]
setattr(<var box>, 'extra', <int>)

[1 delattr@classes]
if hasattr(<var:a box>, 'extra'):
    del <a>.extra

[1 setattr@classes]
<var box>.items.append(<int>)

[1 property-set@methods]
<var box>.half = <mat>

[1 class-attribute@classes]
Box.total += 1

[1 class-attribute@classes]
<var box>.limit = <int>

[1 setitem@methods]
<var box>[<int>] = <int>

[1 augmented-object@methods]
<new:a box> = Box(<mat>)
<a> += <int>

[2 dataclass-mutate]
<var settings>.rounds += 1

[1 dataclass-mutate]
<var settings>.items.append(<int>)

[2 slots-mutate]
<var point>.a = <int>

[1 slots-mutate]
<var point>.b = <mat>

[4 in-place]
<var mat>.add_(<mat>).clamp_(-4, 4)

[3 in-place]
<var mat>.mul_(<float>).clamp_(-4, 4)

[2 in-place]
<var mat>.tanh_()

[2 in-place]
<mut mat> += <mat>

[1 in-place]
<mut mat> *= 0.5

[1 in-place]
<var mat>.copy_(<mat>)

[1 in-place]
<var mat>.zero_()

[2 in-place-index]
<var mat>[0] = <vec>

[2 in-place-index]
<var mat>[0, 0] = <float>

[1 in-place-index]
<var mat>[0, -1] += <scal>.clamp(-1, 1)

[1 in-place-index]
<var:a mat>[<a> > 1] = 0.5

[1 in-place-view]
<var mat>[:, 0].mul_(0.5)

[1 in-place-view]
<var mat>[0].add_(<vec>).clamp_(-3, 3)

[1 in-place-view]
<var mat>.t().clamp_(max=1.5)

[1 in-place-view]
for <local:a vec> in <var mat>:
    <a>.mul_(0.5)

[1 in-place-loop]
for <local:a mat> in <mats>:
    <a>.mul_(<float>).clamp_(-4, 4)

[1 in-place]
<var vec>.sub_(<scal>).clamp_(-4, 4)

[1 in-place]
<var scal>.mul_(0.5)

[1 in-place]
<var imat>.add_(1)
""")
