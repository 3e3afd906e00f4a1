"""Templates of branches, loops and generators. See templates.py for the holes.

Loops end: their counters grow before anything else happens in the body, and a program that takes too many lines on its
arguments (a list that grows while it is iterated) is thrown away by generate.py.
"""

from __future__ import annotations

from programs.templates import parse_statements

CONTROL = parse_statements("""
[6 if]
if <cond>:
    <block>

[5 if-else]
if <cond>:
    <block>
else:
    <block>

[3 if-elif]
if <cond>:
    <block>
elif <cond>:
    <block>
else:
    <block>

[3 if-defines]
if <cond>:
    <block>
    <later:a mat> = <mat>
else:
    <a> = <mat>

[2 if-defines]
if <cond>:
    <later:a int> = <int>
elif <cond>:
    <a> = <int>
else:
    <block>
    <a> = <int>

[4 for-range]
for <local:i int> in range(<small>):
    <loop>

[1 for-range]
for <local:i int> in range(<small>, 0, -1):
    <loop>

[3 for-list]
for <local:a int> in <ints>:
    <loop>

[3 for-list]
for <local:a mat> in <mats>:
    <loop>

[1 for-list]
for <local:a int> in reversed(<ints>):
    <loop>

[1 for-tuple]
for <local:a int> in <triple>:
    <loop>

[1 for-string]
for <local:a key> in 'abc':
    <loop>

[2 for-dict]
for <local:k key>, <local:a int> in list(<intmap>.items()):
    <loop>

[1 for-dict]
for <local:k key> in <intmap>:
    <loop>

[2 for-dict]
for <local:k key>, <local:a mat> in <matmap>.items():
    <loop>

[1 for-dict]
for <local:a mat> in list(<matmap>.values()):
    <loop>

[1 for-set]
for <local:a int> in sorted(<intset>):
    <loop>

[2 for-enumerate]
for <local:i int>, <local:a mat> in enumerate(<mats>):
    <loop>

[1 for-enumerate]
for <local:i int>, (<local:a int>, <local:b int>) in enumerate(zip(<ints>, <ints>), 1):
    <loop>

[2 for-zip]
for <local:a int>, <local:b mat> in zip(<ints>, <mats>):
    <loop>

[2 for-tensor]
for <local:a vec> in <mat>:
    <loop>

[2 for-generator]
for <local:a int> in <intgen>:
    <loop>

[2 for-generator]
for <local:a mat> in <matgen>:
    <loop>

[1 for-iterator]
<new:g intgen> = iter(<ints>)
for <local:a int> in <g>:
    <loop>
    next(<g>, None)

[1 for-object@methods]
for <local:a int> in <box>:
    <loop>

[3 for-else]
for <local:a int> in range(<small>):
    <loop>
    if <cond>:
        break
else:
    <block>

[3 while]
<new:i int> = 0
while <i> < <small>:
    <i> += 1
    <loop>

[2 while-tensor]
<new:i int> = 0
while <i> < 4 and <scal> > <float>:
    <i> += 1
    <mut mat> = <mat> * 0.5
    <loop>

[1 while-tensor]
<new:t scal> = <scal>.clamp(-4, 4)
<new:i int> = 0
while <t> > 0.1 and <i> < 6:
    <t> = <t> - 0.75
    <i> += 1
    <loop>

[1 while-else]
<new:i int> = <small>
while <i> > 0:
    <i> -= 1
    <loop>
else:
    <block>

[1 while-true]
<new:i int> = 0
while True:
    <i> += 1
    if <i> > 3 or <cond>:
        break
    <loop>

[1 while-walrus]
<new:a ints> = <ints>[:4]
while <a> and (<local:w int> := <a>.pop()) != 9:
    <loop>

[1 while-deque]
<new:q intqueue> = collections.deque(<ints>[:4])
while <q>:
    <local:w int> = <q>.popleft()
    <loop>

[4 break@loop]
if <cond>:
    break

[4 continue@loop]
if <cond>:
    continue

[2 return@function]
if <cond>:
    <block>
    return <result>

[1 match]
match <int>:
    case 0 | 1:
        <block>
    case <local:w int> if <cond>:
        <block>
    case _:
        <block>

[1 match]
match <ints>:
    case [<local:a int>, <local:b int>]:
        <block>
    case [<local:w int>, *<local:r ints>]:
        <block>
    case _:
        <block>

[1 assert@protected]
assert <cond>, <str>

[1 assert]
assert <mat>.shape[0] > 0

[30 yield@yields]
yield <item>

[15 yield-conditional@yields]
if <cond>:
    yield <item>

[6 yield-from@yields]
yield from [<item>, <item>]

[6 yield-try@yields]
try:
    yield <item>
finally:
    LOG.append(<int>)

[6 yield-with@yields]
with Guard(ValueError, <int>):
    yield <item>
""")
