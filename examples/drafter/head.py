"""An EAGLE-3-style draft head in plain PyTorch: one decoder layer over the target's states and the next token.

At row t it sees the captured states of token t and the token t + 1, and drafts what the target will say after that
token: the target's distribution at row t + 1.
"""

import torch
from torch import nn
from torch.nn import functional

HEADS = 4


class DraftHead(nn.Module):
    """`embedding` and `output` [vocabulary, hidden] are the target's; the embedding stays as it is."""

    def __init__(self, embedding: torch.Tensor, output: torch.Tensor, n_layers: int) -> None:
        super().__init__()
        hidden = embedding.shape[1]
        self.register_buffer("embedding", embedding.clone())
        self.fuse = nn.Linear(n_layers * hidden, hidden, bias=False)
        self.norm_token, self.norm_state = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.qkv = nn.Linear(2 * hidden, 3 * hidden, bias=False)
        self.mix = nn.Linear(hidden, hidden, bias=False)
        self.norm_mlp, self.norm_out = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.gate, self.up = nn.Linear(hidden, 3 * hidden, bias=False), nn.Linear(hidden, 3 * hidden, bias=False)
        self.down = nn.Linear(3 * hidden, hidden, bias=False)
        self.output = nn.Parameter(output.clone())

    def forward(self, states: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """Draft from `states` [batch, rows, layers x hidden] and the tokens behind them `following` [batch, rows].

        Returns logits [batch, rows, vocabulary].
        """
        stream = self.fuse(states)
        token = functional.embedding(following, self.embedding)
        both = torch.cat([self.norm_token(token), self.norm_state(stream)], dim=-1)
        stream = stream + self.mix(self.attend(both))
        inner = self.norm_mlp(stream)
        stream = stream + self.down(functional.silu(self.gate(inner)) * self.up(inner))
        return functional.linear(self.norm_out(stream), self.output)

    def attend(self, both: torch.Tensor) -> torch.Tensor:
        """Attend causally with rotary positions: [batch, rows, 2 x hidden] to [batch, rows, hidden]."""
        n_batch, n_rows, _ = both.shape
        query, key, value = self.qkv(both).view(n_batch, n_rows, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(rotate(query), rotate(key), value, is_causal=True)
        return mixed.transpose(1, 2).reshape(n_batch, n_rows, -1)


def rotate(values: torch.Tensor) -> torch.Tensor:
    """Turn [batch, heads, rows, width] by angles that grow with the row."""
    n_rows, width = values.shape[-2:]
    rates = 10000.0 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(n_rows)[:, None] * rates
    first, second = values.chunk(2, dim=-1)
    return torch.cat(
        [first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()], dim=-1
    )
