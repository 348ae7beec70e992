// Smoothing over x, not over points: thinned and full data look the same.

/** A running mean whose weights halve every `halfLife` of x. Weights are normalised, so a constant stays that constant. */
export function smooth(x: number[], y: (number | null)[], halfLife: number): (number | null)[] {
  let sum = 0;
  let weight = 0;
  let before = x[0] ?? 0;
  return y.map((value, i) => {
    if (value === null) return null;
    const at = x[i] ?? before;
    const fade = halfLife > 0 ? 2 ** (-(at - before) / halfLife) : 0;
    before = at;
    sum = sum * fade + value;
    weight = weight * fade + 1;
    return sum / weight;
  });
}
