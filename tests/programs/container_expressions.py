"""Templates of expressions that are containers, objects, functions and generators. See expressions.py for the kinds."""

from __future__ import annotations

from programs.templates import parse_expressions

CONTAINERS = parse_expressions("""
ints
  4 list                        [<int>, <int>]
  2 list                        [<int>, *<ints>][:6]
  1 list                        list(range(<small>))
  1 list                        <ints>[:2] + <ints>[:2]
  1 list                        <ints>[::-1]
  1 list                        [<int>] * <small>
  1 list                        list(<ints>)
  1 list                        <ints>.copy()
  3 comprehension               [<int> for <local:a int> in <outer ints>]
  2 comprehension               [<int> for <local:a int> in range(<outer small>) if <cond>]
  1 comprehension               [<int> for <local:a int> in range(2) for <local:b int> in range(<a>)]
  1 comprehension               [<int> for <local:a int>, <local:b int> in zip(<outer ints>, <outer ints>)]
  1 comprehension               [<int> for <local:k key>, <local:a int> in <outer intmap>.items()]
  1 sorted                      sorted(<ints>)
  1 sorted                      sorted(<outer ints>, key=lambda <local:a int>: -<a>, reverse=<outer cond>)
  1 sorted                      sorted(<intset>)
  1 map-filter                  list(map(lambda <local:a int>: <int>, <outer ints>))
  1 map-filter                  list(filter(lambda <local:a int>: <cond>, <outer ints>))
  1 generator                   list(<intgen>)
  1 generator                   [*<intgen>]
  1 itertools                   list(itertools.chain(<ints>, <triple>))[:5]
  1 itertools                   list(itertools.islice(<intgen>, 2))
  1 itertools                   list(itertools.accumulate(<ints>))
  1 dict-view                   list(<intmap>.values())
  1 shape                       list(<mat>.shape)
  1 enumerate-zip               [<local:a int> + <local:b int> for <a>, <b> in enumerate(<outer ints>)]
  1 index                       <var:a nested>[0] if <a> else <ints>
  1 attribute@classes           <box>.items
  1 dataclass                   <settings>.items
  1 defaultdict                 <var groups>[<key>]
  1 iterate-object@methods      list(<box>)[:4]
  1 conditional                 <ints> if <cond> else <ints>
  1 unpack                      [*<triple>, *<ints>][:5]
  1 call-helper                 <call ints>
  1 break-tolist                <imat>.tolist()[0]
  1 break-comprehension         [<local:a vec>.sum().item() > 0 for <a> in <outer mat>]
  1 break-comprehension         [noisy(<local:a int>) for <a> in <outer ints>][:3]
mats
  4 list                        [<mat>, <mat>]
  2 list                        [<mat>, *<mats>][:4]
  1 list                        <mats>[::-1]
  2 comprehension               [<mat> for <local:a int> in range(<outer small>)]
  2 comprehension               [<mat> for <local:a mat> in <outer mats>]
  1 comprehension               [<mat> for <local:a mat> in <outer mats> if <cond>]
  1 comprehension               [<mat> for <local:k int>, <local:a mat> in enumerate(<outer mats>)]
  1 generator                   list(<matgen>)
  1 dict-view                   list(<matmap>.values())
  1 sorted                      sorted(<outer mats>, key=lambda <local:a mat>: <int>)
  1 sorted                      sorted(<outer mats>, key=lambda <local:a mat>: <a>.sum().item())
  1 map-filter                  list(map(<var matfn>, <mats>))
  1 map-filter                  list(map(torch.tanh, <mats>))
  1 conditional                 <mats> if <cond> else <mats>
  1 break-comprehension         [<mat> * <local:a mat>.mean().item() for <a> in <outer mats>]
  1 break-comprehension         [noisy(<local:a mat>) for <a> in <outer mats>]
strs
  2 list                        [<str>, <str>]
  1 sorted                      sorted(<intmap>)
  1 comprehension               [<str> for <local:a int> in <outer ints>]
  1 str-method                  <str>.split('-')
nested
  2 list                        [<ints>, <ints>]
  1 list                        [[]] * 2
  1 comprehension               [[<int> for <local:b int> in range(<a>)] for <local:a int> in range(<outer small>)]
  1 comprehension               [list(<local:a ints>) for <a> in <outer nested>]
  1 enumerate-zip               [list(<local:a row>) for <a> in zip(<outer ints>, <outer ints>)]
intmap
  3 dict                        {'a': <int>, 'b': <int>}
  2 dict                        {**<intmap>, <key>: <int>}
  1 dict                        dict(<intmap>)
  1 dict                        dict(a=<int>, c=<int>)
  1 dict                        <intmap> | {'c': <int>}
  1 dict                        dict(zip('abc', <ints>))
  1 dict-comprehension          {<local:k key>: <int> for <k> in 'abc'}
  1 dict-comprehension          {<local:k key>: <int> for <k>, <local:a int> in <outer intmap>.items() if <cond>}
  1 dict                        <intmap>.copy()
  1 counter                     dict(collections.Counter(<str>[:3]))
matmap
  3 dict                        {'a': <mat>, 'b': <mat>}
  1 dict                        {<key>: <mat>}
  1 dict                        {**<matmap>, <key>: <mat>}
  1 dict-comprehension          {<local:k key>: <mat> for <k> in ('a', 'c')}
  1 dict-comprehension          {<local:k key>: <mat> for <k>, <local:a mat> in <outer matmap>.items()}
idmap
  2 dict                        {<int>: <mat>, <int>: <mat>}
  1 dict-comprehension          {<local:a int>: <mat> for <a> in <outer ints>}
  1 enumerate-zip               dict(enumerate(<mats>))
intset
  2 set                         {<int>, <int>}
  1 set                         set(<ints>)
  1 set                         <intset> | {<int>}
  1 set                         <intset> & <intset>
  1 set                         <intset> - {<int>}
  1 set                         <intset> ^ {<int>, 3}
  1 set-comprehension           {<int> for <local:a int> in <outer ints>}
triple
  2 tuple                       (<int>, <int>, <int>)
  1 tuple                       (*<ints>, 1, 2, 3)[:3]
  1 tuple                       <triple>[::-1]
  1 genexp                      tuple(<int> for <local:a int> in range(3))
  1 sorted                      tuple(sorted(<triple>))
couple
  2 tuple                       (<mat>, <int>)
  1 tuple                       (<mat>, <int>) if <cond> else <couple>
  1 call-helper                 <call couple>
pair
  2 namedtuple                  Pair(<mat>, <int>)
  1 namedtuple                  Pair(second=<int>, first=<mat>)
  1 namedtuple                  <pair>._replace(second=<int>)
  1 namedtuple                  Pair(*<couple>)
settings
  2 dataclass                   Settings(<float>)
  1 dataclass                   Settings(scale=<float>, rounds=<int>, items=<ints>)
  1 dataclass                   dataclasses.replace(<settings>, rounds=<int>)
matqueue
  2 deque                       collections.deque([<mat>], maxlen=3)
  1 deque                       collections.deque(<mats>)
intqueue
  2 deque                       collections.deque(<ints>, maxlen=4)
  1 deque                       collections.deque([<int>, <int>])
groups
  2 defaultdict                 collections.defaultdict(list)
  1 defaultdict                 collections.defaultdict(list, {'a': <ints>})
counts
  2 defaultdict                 collections.defaultdict(int)
  1 counter                     collections.Counter(<ints>)
point
  2 slots                       Point(<int>, <mat>)
box
  3 new-object@methods          Box(<mat>)
  2 new-object@methods          Box(<mat>, <int>)
  2 new-object@methods          Crate(<mat>, count=<int>)
  1 operator@methods            <box> + <int>
  1 with-object@methods         Crate(<mat>)
matfn
  3 lambda                      lambda <local:a mat>: <mat>
  2 lambda                      lambda <local:a mat>, <local:k int>=<outer int>: <mat>
  1 function-value              torch.tanh
  1 function-value              <var matfn>
  1 bound-method@methods        <var box>.scale
  1 partial                     functools.partial(torch.add, <mat>)
  1 conditional                 <matfn> if <cond> else torch.relu
intfn
  3 lambda                      lambda <local:a int>: <int>
  2 lambda                      lambda <local:a int>=<outer int>: <int>
  1 function-value              abs
  1 bound-method@methods        <var box>.bump
  1 lambda                      lambda <local:a int>, *<local:p row>, **<local:k row>: <int>
intgen
  2 genexp                      (<int> for <local:a int> in range(<outer small>))
  1 genexp                      (<int> for <local:a int> in <outer ints> if <cond>)
  1 iterator                    iter(<ints>)
  1 map-filter                  map(abs, <ints>)
  3 call-helper                 <call intgen>
matgen
  2 genexp                      (<mat> for <local:a int> in range(<outer small>))
  2 genexp                      (<mat> for <local:a mat> in <outer mats>)
  1 iterator                    iter(<mats>)
  1 map-filter                  map(torch.tanh, <mats>)
  3 call-helper                 <call matgen>
""")
