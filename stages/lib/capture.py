"""Which states are captured, and in which groups of rows."""
from stages.lib.refusal import Refusal


def boundaries_of(layer_ids, offset, num_layers):
    """boundary = layer id + offset, checked: sorted, unique, inside the stack.

    Boundary `num_layers` (the last layer's output) is refused: SGLang's Llama-like classes never reach it and would
    hand the draft one state too few (contract: edge ids).
    """
    boundaries = [i + offset for i in layer_ids]
    if sorted(set(layer_ids)) != list(layer_ids):
        raise Refusal(f"capture.layer_ids is {list(layer_ids)}; expected ascending ids, each once")
    if not boundaries or boundaries[0] < 0 or boundaries[-1] >= num_layers:
        raise Refusal(f"capture.layer_ids {list(layer_ids)} with offset {offset} are the boundaries {boundaries}; this "
                      f"target has the boundaries 0 to {num_layers - 1} (the output of its last layer cannot be captured)")
    return boundaries


def batches_by_length(lengths, batch_tokens):
    """Indices grouped so that a padded group holds at most `batch_tokens` (at least one row each), shortest first."""
    groups, group = [], []
    for i in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if group and (len(group) + 1) * lengths[i] > batch_tokens:
            groups, group = [*groups, group], []
        group.append(i)
    return [*groups, group] if group else groups
