"""Templates of expressions that are tensors. See expressions.py for the kinds."""

from __future__ import annotations

from programs.templates import parse_expressions

TENSORS = parse_expressions("""
mat
  5 pointwise                   <mat> + <mat>
  3 pointwise                   <mat> - <mat>
  3 pointwise                   torch.tanh(<mat> * <mat>)
  2 pointwise                   torch.relu(<mat>)
  2 pointwise                   <mat>.clamp(-2, 2)
  2 pointwise                   torch.sin(<mat>)
  1 pointwise                   <mat>.sigmoid()
  1 pointwise                   <mat>.abs()
  1 pointwise                   -<mat>
  1 pointwise                   torch.maximum(<mat>, <mat>)
  1 pointwise                   torch.where(<mat> > 0, <mat>, <mat>)
  1 pointwise                   torch.nn.functional.leaky_relu(<mat>, 0.1)
  1 pointwise                   torch.lerp(<mat>, <mat>, 0.25)
  1 pointwise                   torch.add(<mat>, <mat>, alpha=2)
  1 pointwise                   <mat>.masked_fill(<mat> > 1, <float>)
  3 tensor-int                  <mat> * <int> * 0.1
  2 tensor-int                  <mat> + <int>
  1 tensor-int                  <int> - <mat>
  1 tensor-int                  <mat> / (abs(<int>) + 1)
  2 tensor-float                <mat> * <float>
  2 tensor-float                <float> - <mat>
  2 broadcast                   <mat> + <vec>
  2 broadcast                   <mat> * <scal>.tanh()
  1 broadcast                   <mat> - <mat>.mean(0)
  1 broadcast                   <mat> - <mat>.mean(1, keepdim=True)
  2 matmul                      torch.tanh(<mat> @ <mat>.t() @ <mat>)
  1 matmul                      torch.tanh(torch.mm(<mat>, <mat>.t()).mm(<mat>))
  1 matmul                      torch.einsum('ij,kj->ik', <mat>, <mat>).tanh() @ <mat>
  2 create                      torch.zeros_like(<mat>)
  1 create                      torch.ones(<mat>.shape)
  1 create                      torch.full(<mat>.shape, <float>)
  1 create                      <mat>.new_ones(<mat>.shape)
  1 create                      torch.arange(<var:a mat>.numel()).reshape(<a>.shape) * 0.1
  1 create                      torch.tensor([[<float>] * <var:a mat>.shape[1]] * <a>.shape[0])
  1 view                        <mat>[:]
  1 view                        <mat>.t().t()
  1 view                        <var:a mat>.reshape(-1).view(<a>.shape)
  1 view                        <mat>.unsqueeze(0).squeeze(0)
  1 view                        <mat>[None][0]
  1 view                        <mat>.view_as(<mat>)
  1 view                        <mat>.t().contiguous().t()
  1 view                        <vec>.expand_as(<mat>).clone()
  1 copy                        <mat>.clone()
  1 copy                        <mat>.detach()
  1 copy                        <mat>.contiguous()
  1 reorder                     <mat>.flip(0)
  1 reorder                     <mat>.roll(1, 0)
  1 reorder                     torch.sort(<mat>, dim=1).values
  1 reorder                     <mat>.cumsum(0)
  1 reorder                     torch.softmax(<mat>, dim=-1)
  1 reorder                     <mat>[torch.arange(<var:a mat>.shape[0])]
  2 cat-stack                   torch.stack([<mat>, <mat>]).sum(0)
  1 cat-stack                   torch.cat([<mat>, <var:a mat>])[:len(<a>)]
  1 cat-stack                   torch.cat((<mat>, <var:a mat>), dim=1)[:, :<a>.shape[1]]
  1 cat-stack                   torch.stack(<var:a mats>).mean(0) if <a> else <mat>
  1 cat-stack                   torch.stack([*<var:a mat>])
  1 cat-stack                   torch.stack(list(<mat>.unbind(0)))
  1 split                       torch.cat(torch.split(<mat>, 1))
  1 split                       torch.cat(<mat>.chunk(2, dim=1), dim=1)
  2 dtype                       <mat>.double().float()
  1 dtype                       <mat>.to(torch.float64).to(torch.float32)
  1 dtype                       (<mat> > 0).float()
  1 dtype                       <imat>.float()
  1 dtype                       <mat>.to(<mat>.dtype)
  1 dtype                       <mat>.type_as(<mat>)
  2 conditional                 <mat> if <cond> else <mat>
  2 walrus                      (<local:w mat> := <outer mat>) + <w>.tanh()
  2 index                       <var:a mats>[0] if <a> else <mat>
  1 index                       <var:a mats>[-1] if <a> else <mat>
  1 index                       <var:a mats>[<int> % len(<a>)] if <a> else <mat>
  1 list-pop                    <var:a mats>.pop() if <a> else <mat>
  2 dict-get                    <matmap>.get(<key>, <mat>)
  1 dict-get                    <var:a matmap>[<key>] if <cond> and 'a' in <a> and 'b' in <a> and 'c' in <a> else <mat>
  1 dict-get                    <idmap>.get(<int>, <mat>)
  1 dict-pop                    <var matmap>.pop(<key>, <mat>)
  1 dict-get                    <var matmap>.setdefault(<key>, <mat>)
  1 deque                       <var:a matqueue>[0] if <a> else <mat>
  1 deque                       <var:a matqueue>.pop() if <a> else <mat>
  1 tuple-index                 <couple>[0]
  1 namedtuple                  <pair>.first
  1 slots                       <point>.b
  1 none                        <mat> if <var:a opt> is None else <a>
  2 attribute@classes           <box>.value
  1 getattr@classes             getattr(<box>, 'value')
  2 property@methods            <box>.half
  2 method@methods              <box>.scale(<mat>)
  2 call-object@methods         <box>(<mat>)
  1 operator@methods            (<box> + <int>).value
  1 operator@methods            (<box> @ <mat>)
  3 call-lambda                 <var matfn>(<mat>)
  3 call-helper                 <call mat>
  2 sum-generator               sum(<matgen>, <mat>)
  1 next                        next(<matgen>, <mat>)
  2 genexp                      sum((<mat> for <local:a mat> in <outer mats>), <outer mat>)
  1 genexp                      sum(<mat> for <local:a int> in range(<outer small>)) + <outer mat>
  2 comprehension               sum([<mat> for <local:a int> in <outer ints>][:3], <outer mat>)
  1 reduce                      functools.reduce(torch.add, <mats>, <mat>)
  1 reduce                      functools.reduce(lambda <local:p mat>, <local:q mat>: <mat>, <outer mats>, <outer mat>)
  1 lambda                      (lambda <local:p mat>, <local:k int>=<outer int>: <mat>)(<outer mat>)
  1 star-call                   torch.add(*(<mat>, <mat>))
  1 star-call                   torch.clamp(<mat>, **{'min': -1, 'max': 1})
  1 operator-module             operator.mul(<mat>, 0.5)
  1 getattr                     getattr(<mat>, 'tanh')()
  1 getattr                     getattr(torch, <strop>)(<mat>)
  1 in-place-expression         <mat>.clone().mul_(<float>)
  1 in-place-expression         <var mat>.add_(<int>).clamp_(-3, 3)
  1 partial                     functools.partial(torch.add, <mat>)(<mat>)
  1 break-item                  <mat> * <scal>.item()
  1 break-float                 <mat> + float(<scal>)
  1 break-tolist                torch.tensor(<mat>.tolist())
  1 break-print                 (print('mat', <mat>.shape[0], file=None) or <mat>)
  1 break-clock                 (time.monotonic(), <mat>)[1]
  1 break-helper                noisy(<mat>)
  1 break-clock                 (<mat> if time.monotonic() > 0 else None)
  1 raising@protected           <mat> @ <mat> @ <mat>
  1 raising@protected           <mat> + torch.ones(7, 9)
  1 raising@protected           <mat>.view(-1, 17)
  1 raising@protected           <mat>[9]
  1 raising@protected           <matmap>['missing']
  1 raising@protected           <mats>[17]
  1 raising@protected           torch.stack([])
  1 raising@protected           <mat>.missing
  1 raising@protected           <mat> + <str>
  1 raising@protected           <mat>.sum(5)
  1 raising@protected           [<mat>] + <mat>
vec
  2 tensor-index                <mat>[0]
  1 tensor-index                <mat>[-1]
  1 tensor-index                <mat>[<var:a mat>.shape[0] - 1]
  1 tensor-index                <mat>[<int> % 2]
  2 reduce-tensor               <mat>.sum(0)
  1 reduce-tensor               <mat>.mean(dim=0)
  1 reduce-tensor               <mat>.amax(0)
  1 reduce-tensor               <mat>.max(0)[0]
  1 reduce-tensor               <mat>.max(dim=0).values
  1 pointwise                   <vec> * 0.5
  1 pointwise                   <vec> + <vec>
  1 pointwise                   torch.tanh(<vec>)
  1 broadcast                   <vec> - <scal>
  1 conditional                 <vec> if <cond> else <vec>
  1 reorder                     <mat>.unbind(0)[0]
  1 copy                        <vec>.clone()
scal
  3 reduce-tensor               <mat>.sum()
  2 reduce-tensor               <mat>.mean()
  1 reduce-tensor               <mat>.max()
  1 reduce-tensor               <vec>.norm()
  1 reduce-tensor               (<mat> > 0).sum() * 0.5
  1 tensor-index                <mat>[0, 0]
  1 tensor-index                <vec>[-1]
  1 matmul                      torch.tanh(torch.dot(<vec>, <vec>))
  1 pointwise                   <scal> * 0.5
  1 pointwise                   <scal> + <scal>
  1 tensor-float                <scal> - <float>
  1 create                      torch.tensor(<float>)
  1 conditional                 <scal> if <cond> else <scal>
  1 global-read                 BIAS
imat
  2 dtype                       <mat>.long() % 5
  1 dtype                       (<mat> > <float>).to(torch.int64)
  1 pointwise                   <imat> + <int>
  1 pointwise                   (<imat> * 3) % 4
  1 create                      torch.zeros(<mat>.shape, dtype=torch.int64)
  1 create                      torch.arange(<var:a mat>.numel()).view(<a>.shape)
  1 reorder                     <mat>.argsort(dim=1)
ten
  2 view                        <mat>.t()
  1 view                        <mat>[1:]
  1 view                        <mat>[:, ::2]
  1 view                        <mat>.flatten()
  1 view                        <mat>.unsqueeze(1)
  1 view                        <vec>.expand(2, 2, -1)
  1 view                        <mat>.permute(1, 0)
  1 view                        <mat>.diagonal()
  1 pointwise                   <ten> * 2
  1 pointwise                   <ten> + <scal>
  1 matmul                      torch.tanh(<mat> @ <mat>.t())
  1 cat-stack                   torch.stack([<mat>, <mat>], dim=<int> % 3)
  1 cat-stack                   torch.cat(<var:a mats>) if <a> else <mat>
  1 mask                        <mat>[<mat> > 0]
  1 mask                        torch.nonzero(<mat> > 0)
  1 create                      torch.arange(abs(<small>))
  1 create                      torch.zeros(abs(<small>), <mat>.shape[1])
  1 dtype                       <mat> > <mat>
  1 dtype                       <mat>.to(torch.bfloat16)
opt
  2 none                        None if <cond> else <mat>
  1 none                        <matmap>.get(<key>)
  1 none                        <mat>
  1 none                        None
strop
  1 getattr                     'tanh'
""")
