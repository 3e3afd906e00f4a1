"""Templates of printing, calling and other things that break a graph. See templates.py for the holes."""

from __future__ import annotations

from programs.templates import parse_statements

CALLS = parse_statements("""
[4 print]
print(<int>)

[2 print]
print(<str>, <int>, sep=':')

[2 print]
print('shape', tuple(<mat>.shape))

[1 print]
print(f'{<var int>}', end=';')

[1 print]
print(<mat>.sum().item() > 0)

[1 print-tensor]
print(<scal>)

[2 break-clock]
time.monotonic()

[1 break-struct]
struct.pack('i', <int> % 99)

[2 break-item]
LOG.append(round(<scal>.item(), 3))

[1 break-tolist]
LOG.extend(<imat>.tolist()[0])

[1 break-item]
<new float> = <scal>.item()

[1 break-bool]
<new bool> = bool(<mat>.sum() > 0)

[2 note]
note(<str>)

[1 method@methods]
<var box>.bump(<int>)

[10 call-statement]
<new mat> = <call mat>

[5 call-statement]
<new int> = <call int>

[3 call-statement]
<new mat>, <new int> = <call couple>

[2 call-statement]
<new ints> = <call ints>

[2 call-statement]
if <call cond>:
    <block>

[3 call-statement]
for <local:a mat> in <call matgen>:
    <loop>

[3 call-statement]
for <local:a int> in <call intgen>:
    <loop>

[2 call-statement]
<new matgen> = <call matgen>

[2 yield-from@yields]
yield from <call matgen>

[4 call-lambda]
<new mat> = <var matfn>(<mat>)

[4 call-lambda]
<new int> = <var intfn>(<int>)

[4 call-object@methods]
<new mat> = <var box>(<mat>)

[4 method@methods]
<new mat> = <var box>.scale(<mat>)

[1 call-stored]
<new:a row> = [<matfn>, <matfn>]
<new mat> = <a>[<int> % 2](<mat>)

[1 call-stored]
<new:a row> = {'f': <matfn>}
<new mat> = <a>['f'](<mat>)

[2 lambda-late]
<new:a row> = [lambda <arg:p mat>: <mat> * <i> for <arg:i int> in range(2)]
<new mat> = <a>[0](<mat>) + <a>[1](<mat>)

[1 lambda-default]
<new:a row> = [lambda <arg:p mat>, <arg:q int>=<i>: <mat> * <q> for <arg:i int> in range(2)]
<new mat> = <a>[0](<mat>) + <a>[-1](<mat>)

[2 generator-partial]
<new:g intgen> = <intgen>
<new ints> = [next(<g>, 0), next(<g>, 0)]
<new int> = sum(<g>)

[1 generator-close@methods]
<new:g row> = counter(abs(<small>) + 1)
<new int> = next(<g>)
<g>.close()

[1 generator-send]
<new:g row> = counter(abs(<small>) + 2)
next(<g>)
<new int> = <g>.send(<int>)

[1 generator-break]
<new:g matgen> = <matgen>
for <local:a mat> in <g>:
    <mut mat> = <mat>
    if <cond>:
        break
<new mats> = list(<g>)

[1 apply]
<new mat> = apply(<matfn>, <mat>)

[1 apply]
<new mat> = apply(<matfn>, <mat>, times=<small>)

[1 comprehension-nested]
<new row> = [[<mat> for <arg:a int> in range(<b>)] for <arg:b int> in range(3)]

[1 comprehension-dict]
<new matmap> = {<arg:k key>: <a> * 2 for <k>, <arg:a mat> in <outer matmap>.items()}

[1 sorted-tensors]
<new row> = sorted([(<int>, 1), (<int>, 2)])
""")
