"""What is left to Python between two breaks: views alone, loops whose turns have other sizes, and what keeps changing."""

import traceback

import pytest
import torch
from torch import nn

import quickfuse


def graphs_of(function, *calls):
    """How many graphs a function has after these calls, which give what eager gives."""
    compiled = quickfuse.compile(function)
    for args in calls:
        torch.testing.assert_close(compiled(*args), function(*args))
    return compiled.graph_count


def lines_of(error):
    """Where an exception came by."""
    return error and [entry.line for entry in traceback.extract_tb(error.__traceback__)]


def of_experts(x, chosen, first, second):
    """Each row goes through one of some experts: as many rows as chose it, other ones for each."""
    x = torch.tanh(x) * 2
    out = torch.zeros_like(x)
    for expert in chosen.unique():
        k = int(expert.item())
        (rows,) = torch.where(chosen == k)
        part = torch.relu(x[rows] @ first[k]) @ second[k]
        out.index_add_(0, rows, part * 0.5)
    return torch.tanh(out + x).sum(1) * 3


def chosen(*counts):
    return torch.cat([torch.full((n,), k) for k, n in enumerate(counts)])


@pytest.mark.parametrize("gradients", [False, True])
def test_a_loop_over_experts_is_not_compiled_for_each_size(gradients):
    weights = torch.randn(2, 5, 4, 4, requires_grad=gradients)
    calls = [(torch.randn(sum(counts), 4), chosen(*counts), *weights)
             for counts in ((1, 2, 3, 4, 5), (5, 4, 3, 2, 1), (3, 3, 3, 3, 3))]  # fmt: skip
    assert graphs_of(of_experts, *calls[:1]) <= 5
    assert graphs_of(of_experts, *calls) <= 5 + gradients  # once `out` has a gradient, and once it has none


def test_what_comes_after_such_a_loop_is_compiled():
    compiled = quickfuse.compile(of_experts)
    args = torch.randn(6, 4), chosen(1, 2, 3), torch.randn(3, 4, 4), torch.randn(3, 4, 4)
    torch.testing.assert_close(compiled(*args), of_experts(*args))
    assert any(s.segment.pause is None and s.kernels for s in compiled.specialisations)


def test_sizes_that_change_outside_of_loops():
    def function(x):
        (rows,) = torch.where(x.sum(1) > 0)
        return torch.tanh(x[rows]) * 2 + x[rows].sum()

    calls = [(torch.cat([torch.ones(n, 4), -torch.ones(2, 4)]),) for n in (1, 2, 3)]
    assert graphs_of(function, *calls) > 3


def test_turns_of_fixed_other_sizes_stay_compiled():
    @quickfuse.disable
    def given(x):
        return x[: len(x) - 1]

    def function(levels):
        total = 0
        for level in levels:
            level = given(level)
            total = total + torch.tanh(level * 2).sum() * level.mean()
        return total

    compiled = quickfuse.compile(function)
    levels = [torch.randn(n) for n in (2, 4, 8)]
    for _ in range(3):
        torch.testing.assert_close(compiled(levels), function(levels))
    assert sum(s.kernels > 0 for s in compiled.specialisations) >= 3


class Counted(nn.Module):
    """Views between breaks, with variables that inner functions share, and a loop that is entered between them."""

    def forward(self, x, mask):
        places = mask.nonzero()
        rows = places[:, 0].unique()
        scale = rows.numel()
        found = [x[row] * scale for row in rows]
        for row in rows:
            k = int(row.item())
            found.append(x[k].squeeze(0).repeat_interleave(places[k, 0]))
        return torch.cat(found).tanh() * 2


@pytest.mark.parametrize("empty", [False, True])
def test_views_between_breaks(empty):
    x, mask = torch.randn(4, 3), torch.zeros(4, 2, dtype=torch.bool)
    if not empty:
        mask[1:3] = True
    net = Counted()
    compiled = quickfuse.compile(net)
    for _ in range(2):
        if empty:
            with pytest.raises(ValueError):
                compiled(x, mask)
        else:
            torch.testing.assert_close(compiled(x, mask), net(x, mask))


def test_an_exception_in_views_that_python_performs():
    def function(x, wide):
        places = x.nonzero()
        try:
            rows = places[:, 1 if wide else 0].unique()
        except IndexError as error:
            return x * 2, error
        return x * rows.numel(), None

    compiled = quickfuse.compile(function)
    for x in (torch.ones(3, 2), torch.ones(3), torch.ones(2, 2)):
        for wide in (False, True):
            found, wanted = compiled(x, wide), function(x, wide)
            torch.testing.assert_close(found[0], wanted[0])
            assert str(found[1]) == str(wanted[1])
            assert lines_of(found[1]) == lines_of(wanted[1])


def test_views_do_not_count_as_graphs():
    def function(x):
        places = x.nonzero()
        rows = places.select(1, 0).unsqueeze(0).squeeze(0).unique()
        return torch.tanh(x) * rows.numel() + 1

    assert graphs_of(function, (torch.ones(3, 2),), (torch.ones(3, 2),)) == 1


def with_history(length, width=4):
    """A step that keeps some of its results, goes through them one by one, and looks at values before it does."""
    kept = []

    def step(x):
        if x.sum() > 1000:
            return x
        if len(kept) == length:
            kept.pop(0)
        kept.append(torch.tanh(x))
        total = torch.zeros(width)
        for k in range(len(kept) - 1, -1, -1):
            total = total + kept[k] * kept[k].sum()
        return torch.sigmoid(total) * x + total.mean()

    return step


def same_steps(make, calls):
    """Both results of each call, of a compiled step and of a plain one, and the compiled one."""
    compiled, plain = quickfuse.compile(make()), make()
    for number in range(calls):
        x = torch.full((4,), 0.1 * number)
        torch.testing.assert_close(compiled(x), plain(x))
        yield compiled


def test_a_history_is_compiled_once_it_is_full(monkeypatch):
    monkeypatch.setattr(quickfuse.config, "measure_short_calls", False)
    counts = [compiled.graph_count for compiled in same_steps(lambda: with_history(5), 80)]
    assert counts[40] == counts[-1] < 12
    *_, compiled = same_steps(lambda: with_history(5), 80)
    largest = max(compiled.specialisations, key=lambda s: s.segment.operators)
    assert largest.segment.pause is None and largest.segment.operators >= 5 * 3  # the whole loop


def test_a_history_that_keeps_growing_is_not_compiled_for_each_length(monkeypatch):
    monkeypatch.setattr(quickfuse.config, "measure_short_calls", False)
    captures = [compiled.captures for compiled in same_steps(lambda: with_history(1000), 150)]
    assert captures[10] == captures[-1]


def test_a_short_loop_over_what_keeps_changing_runs_natively(caplog):
    quickfuse.set_logs(graph_breaks=True)
    try:
        compiled = [*same_steps(lambda: with_history(1000), 8)][-1]
    finally:
        quickfuse.set_logs(graph_breaks=False)
    assert "a loop of few operators, in which something keeps changing, runs natively" in caplog.text
    assert compiled.graph_count <= 7


def test_a_long_loop_over_what_keeps_changing_stays_compiled(caplog):
    def make():
        kept = []

        def step(x):
            if x.sum() > 1000:
                return x
            kept.append(x)
            for k in range(len(kept)):
                y = kept[k]
                for _ in range(8):
                    y = torch.tanh(y * 2) + 1
                x = x + y
            return x

        return step

    quickfuse.set_logs(graph_breaks=True)
    try:
        [*same_steps(make, 8)]
    finally:
        quickfuse.set_logs(graph_breaks=False)
    assert "a loop of few operators" not in caplog.text


@pytest.mark.parametrize("length", [3, 6])
def test_what_came_to_rest_and_changes_again(length, monkeypatch):
    monkeypatch.setattr(quickfuse.config, "measure_short_calls", False)

    def make():
        kept = []

        def step(x, now):
            if x.sum() > 1000:
                return x
            kept.append(x * 2)
            while len(kept) > now:
                kept.pop(0)
            return sum(kept) * len(kept) + x

        return step

    compiled, plain = quickfuse.compile(make()), make()
    for number in range(150):
        x, now = torch.full((4,), 0.1 * number), length if number % 50 < 40 else 2
        torch.testing.assert_close(compiled(x, now), plain(x, now))


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs(search, monkeypatch):
    monkeypatch.setattr(quickfuse.config, "measure_short_calls", False)
    torch.manual_seed(0)
    x, y = torch.randn(32, 4, dtype=torch.float64), torch.randn(32, 1, dtype=torch.float64)
    runs = []
    for wrap in (lambda function: function, quickfuse.compile):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=8, history_size=4, line_search_fn=search)

        def closure(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            return loss

        step = wrap(lambda optimizer=optimizer, closure=closure: optimizer.step(closure).detach())
        losses, captures = [], []
        for _ in range(8):
            losses.append(step())
            captures.append(getattr(step, "captures", 0))
        runs.append(losses)
    torch.testing.assert_close(runs[1], runs[0], rtol=1e-6, atol=1e-9)
    if search is None:
        assert step.graph_count <= 28 and captures[5] == captures[-1]


def test_what_was_just_appended_is_found_without_a_look_at_the_rest():
    def make():
        log = []

        def step(x):
            loss = torch.tanh(x).sum()
            log.append(loss.item())
            log.append(x)
            log.extend([x * 2, number := 3])
            return log[-4], log[-2] + number, log[-3], log[-1], len(log) if x.shape[0] == 1 else 0

        return step

    compiled, plain = quickfuse.compile(make(), fullgraph=True), make()
    for number in range(8):
        x = torch.full((4,), 0.1 * number)
        torch.testing.assert_close(compiled(x), plain(x))
    assert compiled.graph_count == 1
    assert compiled(torch.ones(1))[-1] == 36


def test_what_was_appended_before_is_looked_up():
    log, plain = [torch.zeros(2)], [torch.zeros(2)]

    def step(x, log):
        log.append(x)
        log[-1] = log[-1] * 2
        before = log[-2]
        log.append(before + 1)
        return log.pop(-1), log[-1], before

    compiled = quickfuse.compile(step)
    for number in range(4):
        x = torch.full((2,), 1.0 * number)
        torch.testing.assert_close(compiled(x, log), step(x, plain))
    torch.testing.assert_close(log, plain)
