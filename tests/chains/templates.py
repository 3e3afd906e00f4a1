"""Statements on tensors that PyTorch's database of operators has no samples of: indexing, changes in place, `out=`, numbers.

In each, `{x}` and `{y}` are tensors, `{f}` one of numbers with a point, `{c}` of complex ones, `{b}` of truth values, `{i}`
of indices, and `{n}` a Python number. A figure asks for as many axes or more. `{r}` is any tensor, to be written to.
"""

from __future__ import annotations

#: Expressions that view a tensor.
VIEWS = (
    "{x1}[::2]", "{x1}[1:]", "{x1}[-1]", "{x1}[..., :-1]", "{x}[None]", "{x}[..., None]",
    "{x2}.t() if {x2}.dim() == 2 else {x2}.mT", "{x2}.transpose(0, 1)", "{x2}.transpose(-1, -2)", "{x}.unsqueeze(0)",
    "{x}.squeeze()", "{x1}.unsqueeze(1)", "{x}.reshape(-1)", "{x}.flatten()", "{x}.view({x}.shape)", "{x2}.diagonal()",
    "{x1}.narrow(0, 0, 1)", "{x1}.unfold(0, 2, 1)", "{x2}[:, 0]", "{x2}[:, ::2]", "{x}.expand(2, *{x}.shape)",
    "{x1}.select(0, 0)", "{x1}.flip(0)", "{x2}.movedim(0, -1)", "{x}.detach()", "{x}.data", "{x}.contiguous()",
    "{x}.as_strided({x}.shape, {x}.stride())", "{x1}.swapaxes(0, -1)", "{x1}.chunk(2)", "{x1}.unbind(0)",
    "{x1}.split(2, -1)", "{x1}.tensor_split(2)", "{x}.real", "{x}.conj()", "{c}.imag",
    "torch.view_as_real({c}.resolve_conj())", "{c}.real", "{x1}.view(torch.uint8)", "{x}.view({x}.dtype)",
    "torch.broadcast_to({x}, (2, *{x}.shape))", "{x2}.flatten(0, 1)", "{x1}.unflatten(0, (1, -1))", "{x}.view(-1)",
    "{x}.mH if {x}.dim() == 2 else {x}", "{x}.T if {x}.dim() == 2 else {x}", "{x}.expand_as({y})", "{x}.view_as({x})",
    "torch.atleast_2d({x})", "{x1}.rot90(1, (0, -1)) if {x1}.dim() > 1 else {x1}",
)  # fmt: skip
#: Expressions that compute.
COMPUTED = (
    "{x} + {n}", "{x} * {n}", "{n} - {x}", "{x} / {n}", "{n} / {f}", "{x} ** 2", "{f} ** 0.5", "{x} // 2", "{x} % 3",
    "2 ** {f}", "-{x}", "{x} > {n}", "{x} == {y}", "{x} <= {y}", "{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} / {y}",
    "{x} @ {y}", "torch.where({x} > {n}, {x}, {y})", "torch.where({b}, {x}, {n})", "torch.where({b}, {n}, {y})",
    "{x} + torch.tensor({n})", "{x} * torch.tensor({n}, dtype=torch.float64)", "{x}.sum()", "{x}.mean()", "{x1}.sum(0)",
    "{x1}.sum(-1, keepdim=True)", "{x1}.amax(0)", "{x1}.max(0)", "{x1}.min(-1)", "{x1}.argmax(-1)",
    "{x1}.argsort(stable=True)", "{x1}.sort(0, stable=True)", "{x1}.cumsum(0)", "{x1}.cumprod(-1)", "{x1}.softmax(-1)",
    "{x1}.flip(0)", "{x1}.roll(1, 0)", "torch.cat([{x1}, {x1}])", "torch.stack([{x}, {x}], -1)",
    "torch.cat([{x}, {y}], -1)", "{x1}[[0, -1]]", "{x1}[torch.tensor([0, 0])]", "{x2}[:, torch.tensor([0, -1])]",
    "{x1}[{x1}.shape[0] - 1]", "{x}.to(torch.float32)", "{x}.double()", "{x}.bfloat16()", "{x}.half()", "tidy({x}).long()",
    "tidy({x}).to(torch.uint8)", "tidy({x}).int()", "{x}.bool()", "{x}.to(torch.complex64)", "{x}.clone()",
    "{x}.clone(memory_format=torch.contiguous_format)", "{x}.clamp({n}, 2)", "{x}.clamp(min={y})", "{x}.any()",
    "({x} != 0).all(0)", "{x1}.std(0)", "{x1}.var(-1, keepdim=True)", "{x1}.norm()", "{x1}.logsumexp(-1)",
    "torch.einsum('i...,i...->...', {x1}, {x1})", "torch.einsum('...i,...j->...ij', {x1}, {y1})",
    "torch.tensordot({x1}, {x1}, dims=1)", "torch.outer({x}.flatten(), {y}.flatten())", "{x}.new_full((2, 3), {n})",
    "torch.zeros_like({x})", "torch.full_like({x}, {n})", "torch.ones({x}.shape) * {x}",
    "torch.arange({x}.numel()).reshape({x}.shape) + {x}", "{x}.masked_fill({b}, {n})",
    "{x1}.index_select(0, torch.tensor([0, 0]))", "{x1}.gather(0, torch.zeros_like({x1}, dtype=torch.int64))",
    "{x}.type_as({y})", "{x}.to({y})", "{x} if {x}.is_contiguous() else {y}", "{x}.numel() * {y}", "F.relu({x})",
    "F.gelu({f})", "F.silu({f})", "F.layer_norm({f1}, {f1}.shape[-1:])", "F.normalize({f1}, dim=-1)", "F.pad({x1}, (1, 1))",
    "F.pad({x2}, (0, 1, -1, 0))", "F.dropout({f}, 0.5)", "F.one_hot(tidy({x}).long() % 5, 5)",
    "F.interpolate({f1}.reshape(1, 1, -1), scale_factor=2)", "F.mse_loss({f}, {f} * 0.5)",
    "F.linear({f1}, {f1}.reshape(-1, {f1}.shape[-1]))", "torch.fft.fft({f1})", "torch.fft.rfft({f1})",
    "torch.addcmul({x}, {y}, {y}, value=2)", "torch.lerp({f}, {f}.flip(0) if {f}.dim() else {f}, 0.3)",
    "torch.bitwise_xor({b}, {x} > 0)", "~{b}", "{b} & {b}", "{b} * {x}", "{b}.sum(-1) if {b}.dim() else {b}.sum()",
    "{x}.abs().sqrt()", "torch.sign({x})", "torch.tril({x2})", "{x}.repeat(2, *(1,) * {x}.dim())",
    "{x}.repeat_interleave(2, 0) if {x}.dim() else {x}.repeat(2)", "torch.maximum({x}, {y})", "torch.isclose({x}, {y})",
    "{x}.isnan()", "torch.remainder({x}, 3)", "torch.fmod({x}, 2)", "torch.div({x}, 2, rounding_mode='floor')",
    "{x}.shape[0] + {x1}", "torch.nan_to_num({x})", "torch.bucketize({f}, torch.tensor([0.0, 1.0], dtype={f}.dtype))",
    "{x}.item() + {y} if {x}.numel() == 1 else {y}",
)  # fmt: skip
#: Statements that change a tensor.
CHANGES = (
    "{x}.add_({n})", "{x}.mul_(2)", "{x} += {y}", "{x} *= {n}", "{x} -= {x}.clone()", "{x}.zero_()", "{x}.fill_({n})",
    "{x}.copy_({y})", "{x}.copy_({x}.clone())", "{x1}[0] = {n}", "{x1}[1:] = 0", "{x1}[::2] += 1",
    "{x2}[:, 0] = {y}.flatten()[0]", "{x1}[-1].mul_(2)", "{x1}[torch.tensor([0])] = {n}", "{x}[{x} > 0] = {n}",
    "{x}[...] = {y}", "{x2}.mT.mul_(2)", "{x}.clamp_(-1, 1)", "{x}.neg_()", "{x}.masked_fill_({x} > 0, {n})",
    "{x1}.index_fill_(0, torch.tensor([0]), {n})", "{x1}.scatter_(0, torch.zeros_like({x1}, dtype=torch.int64)[:1], {n})",
    "{x1}.index_add_(0, torch.tensor([0]), {x1}[:1].clone())", "{x}.view(-1)[:1].add_(1)", "{x}.detach().mul_(2)",
    "{x}.data.add_(1)", "{x}.relu_()", "{f}.sigmoid_()", "{x1}.cumsum_(0)", "{x}.pow_(2)", "torch.add({x}, {n}, out={r})",
    "torch.mul({x}, {y}, out={r})", "torch.sum({x1}, 0, out={r})", "torch.where({x} > 0, {x}, {y}, out={r})",
    "torch.matmul({x}, {y}, out={r})", "{x1}[1:] = {x1}[:-1].clone()", "{x1}[1:].copy_({x1}[:-1])", "{x1}[1:] += {x1}[:-1]",
    "{x}.squeeze_()", "{x}.unsqueeze_(0)", "{x2}.transpose_(0, 1)", "{x2}.diagonal().fill_({n})",
    "{x2}.fill_diagonal_({n})", "{x}.div_(2)", "{x}.floor_divide_(2)", "{x}.bernoulli_(0.5)", "{f}.normal_()",
    "{f}.uniform_()", "{x}.random_(0, 5)", "torch.relu_({x})", "F.relu({x}, inplace=True)",
    "{x1}.sort(0, stable=True, out=({r}, {i}))", "torch.abs({x}, out={x})", "{x1}.addcmul_({y}, {y})",
    "{f}.lerp_({f} + 1, 0.5)", "{x}.logical_not_()", "{x}.eq_({n})",
    "{x1}.put_(torch.tensor([0]), {x1}.flatten()[-1:].clone())", "{x}.where({b}, {y}).add_(1)", "{x}.add_({y}.sum())",
    "{x}.sub_({x}.mean())", "{x}.requires_grad_({x}.is_floating_point())", "{x}.resize_as_({x})", "{x}.set_({x}.clone())",
    "{x}.t_() if {x}.dim() == 2 else None", "{x1}[..., 0].fill_({n})", "{x1}.flip(0).add_(1)",
    "{x}.expand(2, *{x}.shape)[0].add_(1)",
)  # fmt: skip
#: Python numbers that they may have.
NUMBERS = ("2", "-1", "0.5", "1.5", "0", "True", "3", "1e-3", "float('inf')", "1j", "-0.0", "100")  # fmt: skip
