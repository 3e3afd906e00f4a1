"""Templates of expressions that are numbers, conditions and strings. See expressions.py for the kinds."""

from __future__ import annotations

from programs.templates import parse_expressions

NUMBERS = parse_expressions("""
int
  4 arithmetic                  <int> + <int>
  3 arithmetic                  <int> - <int>
  2 arithmetic                  <int> * <int> % 11
  1 arithmetic                  <int> // 3
  1 arithmetic                  divmod(<int>, 4)[1]
  1 arithmetic                  -<int>
  1 arithmetic                  abs(<int>)
  1 power                       <small> ** 2
  1 bits                        <int> & 7
  1 bits                        <int> ^ 3 | 1
  1 bits                        ~<small> << 1
  2 builtin                     max(<int>, <int>)
  1 builtin                     min(<int>, <int>, 3)
  1 builtin                     sum(<ints>)
  1 builtin                     max(<ints>, default=<int>)
  1 builtin                     len(<ints>)
  1 builtin                     len(<mats>)
  1 builtin                     len(<str>)
  1 builtin                     len(<matmap>)
  1 builtin                     len(<intset>)
  1 builtin                     len(<matqueue>)
  1 builtin                     int(<cond>)
  1 builtin                     int(str(<int>))
  1 builtin                     id(<var:a ints>) - id(<a>)
  1 builtin                     max(<outer ints> or [0], key=lambda <local:a int>: -<a>)
  1 shape                       <mat>.shape[0]
  1 shape                       <mat>.size(1)
  1 shape                       <mat>.numel()
  1 shape                       <vec>.shape[-1]
  1 shape                       <mat>.dim() + len(<mat>)
  1 shape                       <mat>.shape.numel()
  1 shape                       <ten>.ndim
  2 conditional                 <int> if <cond> else <int>
  1 conditional                 <int> or <int>
  1 conditional                 <int> and <int>
  2 walrus                      (<local:w int> := <outer int>) + <w>
  2 dict-get                    <intmap>.get(<key>, <int>)
  1 dict-get                    <intmap>.setdefault(<key>, <int>)
  1 dict-pop                    <var intmap>.pop(<key>, <int>)
  1 dict-get                    <var counts>[<small>]
  2 index                       <var:a ints>[0] if <a> else <int>
  1 index                       <var:a ints>[<int> % len(<a>)] if <a> else 0
  1 index                       <triple>[1]
  1 index                       <triple>[-1]
  1 list-pop                    <var:a ints>.pop() if <a> else <int>
  1 deque                       <var:a intqueue>.popleft() if <a> else <int>
  1 list-method                 <ints>.count(<int>)
  1 namedtuple                  <pair>.second
  1 namedtuple                  <pair>._replace(second=<int>).second
  1 tuple-index                 <couple>[1]
  1 dataclass                   <settings>.rounds
  1 dataclass                   len(<settings>.items)
  1 slots                       <point>.a
  2 attribute@classes           <box>.count
  1 class-attribute@classes     <box>.limit
  1 class-attribute@classes     type(<box>).limit
  1 class-attribute@classes     Box.total
  1 getattr@classes             getattr(<box>, 'count')
  1 getattr@classes             getattr(<box>, 'extra', <int>)
  2 method@methods              <box>.bump(<int>)
  1 getitem@methods             <box>[<int>]
  1 length@methods              len(<box>)
  1 classmethod@methods         Box.tally(<int>)
  1 staticmethod@methods        <box>.clip(<int>)
  3 call-lambda                 <var intfn>(<int>)
  3 call-helper                 <call int>
  2 next                        next(<intgen>, <int>)
  2 genexp                      sum(<int> for <local:a int> in <outer ints>)
  1 genexp                      max((<int> for <local:a int> in range(<outer small>)), default=<outer int>)
  1 genexp                      next((<a> for <local:a int> in <outer ints> if <cond>), <outer int>)
  1 generator                   sum(<intgen>)
  1 reduce                      functools.reduce(lambda <local:p int>, <local:q int>: (<p> + <q>) % 7, <outer ints>, 1)
  1 lambda                      (lambda <local:p int>, <local:q int>=<outer int>: <int>)(<outer int>)
  1 lambda                      (lambda *<local:p row>: sum(<p>))(<outer int>, <outer int>)
  1 global-read                 COUNT
  1 tensor-reduce-int           len(<mats>) * <mat>.shape[1]
  2 break-item                  <imat>.sum().item() % 9
  1 break-item                  <imat>.max().item()
  1 break-item                  (<mat> > <float>).sum().item()
  1 break-item                  int(<scal> * 4) % 9
  1 break-item                  int(<imat>[0, 0])
  1 break-tolist                len(<mat>.tolist())
  1 break-tolist                sum(<imat>.tolist()[0]) % 7
  1 break-helper                noisy(<int>)
  1 break-print                 (print('seen', <int>, file=None), <int>)[1]
  1 break-clock                 (time.monotonic(), <int>)[1]
  1 break-clock                 int(time.monotonic() * 0) + <int>
  1 break-struct                struct.unpack('i', struct.pack('i', <int>))[0]
  1 note                        note(<int>)
  1 raising@protected           <ints>[17]
  1 raising@protected           <intmap>['missing']
  1 raising@protected           <int> // (<int> * 0)
  1 raising@protected           int('x' + <str>)
  1 raising@protected           <triple>[5]
  1 raising@protected           next(iter([]))
  1 raising@protected           [1, 2].index(<int> + 9)
  1 raising@protected           collections.deque().popleft()
  1 raising@protected           None + <int>
  1 raising@protected           len(<int>)
  1 raising@protected@methods   <box>.missing
  1 raising@protected           min([])
  2 raising@protected           fail(<int>)
  1 raising@protected           fail(<int>, Deep)
small
  3 range                       2
  3 range                       3
  2 range                       abs(<int>) % 4
  1 range                       len(<ints>) % 4
  1 range                       <mat>.shape[0]
  1 range                       min(<int>, 3)
  1 range                       <int> % 3
float
  2 arithmetic                  <float> + <float>
  2 arithmetic                  <float> * 0.5
  1 arithmetic                  <float> - <int>
  1 arithmetic                  <int> / 4
  1 arithmetic                  -<float> % 2.0
  1 arithmetic                  <int> * 0.25
  1 builtin                     float(<int>)
  1 builtin                     max(<float>, <float>)
  1 builtin                     abs(<float>)
  1 builtin                     round(<float>, 2)
  1 builtin                     math.sqrt(abs(<float>))
  1 builtin                     math.tanh(<float>)
  1 conditional                 <float> if <cond> else <float>
  1 dataclass                   <settings>.scale
  1 global-read                 SCALE
  2 break-item                  <scal>.item()
  2 break-float                 float(<scal>)
  1 break-item                  <mat>.sum().item() * 0.1
  1 break-float                 float(<mat>.max()) + <float>
  1 break-tolist                <vec>.tolist()[0]
  1 break-tolist                <mat>.tolist()[0][-1]
  1 break-helper                noisy(<float>)
  1 walrus                      (<local:w float> := <outer float>) * <w>
  1 raising@protected           <float> / (<int> * 0)
  1 raising@protected           math.sqrt(-1 - abs(<float>))
  1 raising@protected           float('text')
  1 raising@protected           float(<mat>)
cond
  6 compare-int                 <int> > <int>
  3 compare-int                 <int> % 2 == 0
  2 compare-int                 <int> <= <int>
  2 chained-comparison          <int> < <int> <= <int>
  1 chained-comparison          0 <= <int> < <int> != 4
  1 compare-float               <float> > <float>
  3 truth                       <bool>
  2 truth                       not <cond>
  2 truth                       <cond> and <cond>
  2 truth                       <cond> or <cond>
  2 container-size              len(<ints>) > <small>
  1 container-size              len(<mats>) > 1
  1 container-truth             not <ints>
  1 container-truth             bool(<mats>)
  1 container-truth             bool(<intmap>)
  1 container-truth             bool(<matqueue>)
  2 contains                    <int> in <ints>
  1 contains                    <int> not in <intset>
  1 contains                    <key> in <intmap>
  1 contains                    <key> in <matmap>
  1 contains                    <int> in (1, 2, 5)
  1 string-compare              <str> == 'ab'
  1 string-compare              <str>.startswith('a')
  1 string-compare              'a' in <str>
  1 compare-list                <ints> == <ints>
  1 compare-tuple               <triple> < <triple>
  1 compare-dict                <intmap> == <intmap>
  1 compare-set                 <intset> <= <intset>
  1 compare-namedtuple          <triple> == tuple(<ints>)
  1 identity                    <var mat> is <var mat>
  1 identity                    <var ints> is not <var ints>
  1 identity                    any(<local:a mat> is <var mat> for <a> in <outer mats>)
  2 none                        <opt> is None
  1 none                        <intmap>.get(<key>) is None
  1 isinstance                  isinstance(<int>, bool)
  1 isinstance                  isinstance(<opt>, torch.Tensor)
  1 isinstance@classes          isinstance(<box>, Crate)
  1 isinstance                  isinstance(<pair>, tuple)
  1 hasattr@classes             hasattr(<box>, 'extra')
  1 type@classes                type(<box>) is Box
  1 equality@methods            <box> == <box>
  1 truth@methods               bool(<box>)
  1 contains@methods            <int> in <box>
  1 shape                       <mat>.shape == <mat>.shape
  1 shape                       <mat>.shape[0] > 2
  1 shape                       <ten>.dim() == 2
  1 shape                       <mat>.is_contiguous()
  1 shape                       <mat>.dtype == torch.float32
  1 shape                       <mat>.requires_grad
  1 grad-mode                   torch.is_grad_enabled()
  1 any-all                     all(<cond> for <local:a int> in <outer ints>)
  1 any-all                     any([<cond> for <local:a int> in range(<outer small>)])
  2 break-branch                <scal> > 0
  2 break-branch                <mat>.sum() > <float>
  2 break-bool                  bool(<mat>.sum() > 0)
  1 break-bool                  bool(<scal> < <scal>)
  1 break-branch                (<mat> > <float>).any()
  1 break-branch                (<mat> < 1).all()
  1 break-bool                  torch.equal(<mat>, <mat>)
  1 break-item                  <scal>.item() > <float>
  1 break-float                 float(<scal>) <= <float>
  1 break-branch                <imat>[0, 0] > 1
  1 break-branch                not <scal>
  1 break-branch                <cond> and <scal> > 0
  1 break-print                 print('cond', <int>, file=None) is None
  1 break-clock                 time.monotonic() > 0 and <cond>
  1 call-helper                 <call cond>
bool
  1 compare-int                 <int> > 1
  1 truth                       not <cond>
  1 compare-str                 <str> < 'b'
""")

STRINGS = parse_expressions("""
str
  2 str                         str(<int>)
  2 fstring                     f'{<var int>}:{<var str>}'[-8:]
  2 fstring                     f'{<var int>}-{<var int> + 1:03d}'
  1 fstring                     f'{<var mat>.shape[0]}x{<var mat>.shape[1]}'
  1 fstring                     f'{tuple(<var mat>.shape)!r}'
  1 fstring                     f'{len(<var ints>)}{<var str>!r:>6}'[:9]
  2 str-join                    '-'.join(str(<local:a int>) for <a> in <outer ints>)[:8]
  1 str-join                    ','.join(sorted(<intmap>))
  1 str-method                  <str>.upper()[:6]
  1 str-method                  <str>.replace('a', 'b')
  1 str-method                  '{}|{}'.format(<int>, <small>)
  1 str-method                  <str>.split('-')[0]
  1 str-format                  '%d/%s' % (<int>, <small>)
  1 str-slice                   (<str> + <str>)[-8:]
  1 str-slice                   <str>[:3] * 2
  1 str-slice                   <str>[::-1]
  1 conditional                 <str> if <cond> else <str>
  1 str-shape                   str(tuple(<mat>.shape))
  1 str-shape                   str(<mat>.dtype)
  1 str-repr                    repr(<ints>)[:12]
  1 str-repr                    repr(<triple>)
  1 str-repr                    str(<pair>.second)
  1 str-type@classes            type(<box>).__name__
  1 str-type@classes            repr(<box>)
  1 call-helper                 <call str>
  1 break-fstring               f'{<var mat>.sum().item():.3f}'
  1 break-fstring               f'{float(<var mat>.max()):.2f}'
  1 break-str                   str(<scal>)[:12]
  1 break-helper                noisy(<str>)
  1 raising@protected           <str> + <int>
  1 raising@protected           <str>.missing
key
  3 str-literal                 'a'
  3 str-literal                 'b'
  2 str-literal                 'c'
  1 conditional                 'a' if <cond> else 'b'
  1 str-index                   'abc'[<int> % 3]
""")
