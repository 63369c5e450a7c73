"""Training on a GPU computes what training on the CPU does: loss, gradients, counts and the replay."""
import pytest
import torch

from stages.lib import loss, packing, verifier, vocabulary
from tests.small import VOCAB, random_draft, states_of

DOCUMENTS = [(list(range(1, 9)), list(range(9, 30))), ([3, 4], [5, 6, 7, 8]), (list(range(20, 40)), list(range(5, 40)))]


@pytest.fixture
def both(tmp_path):
    """{device: (draft, states, target_ids, draft_ids, head rows)} of one random draft and one set of states."""
    states, sides = states_of(tmp_path, DOCUMENTS), {}
    for device in ("cpu", "cuda"):
        draft, d2t = random_draft()
        head = torch.randn(VOCAB, draft.shape.hidden_size, generator=torch.Generator().manual_seed(3))
        target_ids = vocabulary.target_ids(d2t)
        sides[device] = (draft.to(device), states, target_ids.to(device), vocabulary.draft_ids(d2t, VOCAB).to(device),
                         head[target_ids].to(device))
    return sides


def test_loss_gradients_and_accuracy_are_those_of_the_cpu(both):
    found = {}
    for device, (draft, states, _, draft_ids, head_rows) in both.items():
        batch = packing.collate(states, [[0, 1], [2]], 128).to(device)
        total, scores = loss.ttt_loss(draft, batch, head_rows, draft_ids >= 0, draft_ids, 3, 0.8, False)
        total.backward()
        found[device] = total.item(), scores, {name: p.grad.cpu() for name, p in draft.named_parameters()}
    (cpu, cpu_scores, cpu_gradients), (gpu, gpu_scores, gpu_gradients) = found["cpu"], found["cuda"]
    assert gpu == pytest.approx(cpu, rel=1e-4) and gpu_scores == cpu_scores
    for name, gradient in cpu_gradients.items():
        torch.testing.assert_close(gpu_gradients[name], gradient, rtol=1e-3, atol=1e-4 * gradient.abs().max().item())


def test_the_replay_counts_the_same_passes(both):
    counted = {device: verifier.replay(draft, states, [0, 1, 2], target_ids, [3, 5], 128, 2)
               for device, (draft, states, target_ids, _, _) in both.items()}
    assert counted["cuda"] == counted["cpu"]
