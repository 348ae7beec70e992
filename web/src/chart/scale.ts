// Which lines can share an axis, and where an axis has its ticks.

export interface Range {
  min: number;
  max: number;
}

const MOST_SQUASHED = 8; // a line that uses less than an eighth of the height is not readable
const SPLIT_AGAIN = 24; // charts that exist already are changed only when they are really bad

export function rangeOf(y: readonly (number | null | undefined)[]): Range | null {
  let min = Infinity;
  let max = -Infinity;
  for (const value of y) {
    if (value === null || value === undefined) continue;
    if (value < min) min = value;
    if (value > max) max = value;
  }
  return min <= max ? { min, max } : null;
}

/** How much room a line needs to be read: a constant, a tenth of its size. */
function extent({ min, max }: Range): number {
  return Math.max(max - min, 0.1 * Math.max(Math.abs(min), Math.abs(max)), Number.MIN_VALUE);
}

function fits(ranges: Range[], limit: number): boolean {
  const whole = extent({ min: Math.min(...ranges.map((r) => r.min)), max: Math.max(...ranges.map((r) => r.max)) });
  return ranges.every((range) => whole / extent(range) <= limit);
}

/** Sorts names into charts in which none is squashed to a flat line by another. Names without values go into the first. */
export function clusters(ranges: Map<string, Range | null>, before: string[][] = []): string[][] {
  const known = (names: string[]) => names.flatMap((name) => ranges.get(name) ?? []);
  const same = before.flat().length === ranges.size && before.flat().every((name) => ranges.has(name));
  if (same && before.every((names) => known(names).length === 0 || fits(known(names), SPLIT_AGAIN))) return before;
  const found: string[][] = [];
  for (const [name, range] of ranges) {
    const home = found.find((names) => range === null || fits([...known(names), range], MOST_SQUASHED));
    if (home !== undefined) home.push(name);
    else found.push([name]);
  }
  return found;
}

const SPLIT_WORDS = "train|training|val|valid|validation|test|eval|evaluation|dev";
const SPLIT_SEGMENT = new RegExp(`^(${SPLIT_WORDS})$`, "i");
const SPLIT_AFFIX = new RegExp(`^(${SPLIT_WORDS})[_/-]|[_/-](${SPLIT_WORDS})$`, "i");

/** What a name measures, whatever part of the model or of the data it measures it on: "eval_loss", "loss.train" -> "loss". */
export function quantity(name: string): string {
  const segments = name.split(".").filter((segment) => !SPLIT_SEGMENT.test(segment) && !/^\d+$/.test(segment));
  if (segments.length === 0) return name;
  const outer = segments.length > 1 ? `${segments[0]}.` : "";
  return outer + (segments.at(-1) ?? "").replace(SPLIT_AFFIX, "");
}

/** The group a name belongs to: what is before its first dot. */
export function section(name: string): string {
  const segments = quantity(name).split(".");
  return segments.length > 1 && segments[0] ? segments[0] : "";
}

/** Ticks of a logarithmic axis: 1, 2, 5 of every decade while there is room, else powers of ten. */
export function logTicks(min: number, max: number, most: number): number[] {
  const [low, high] = [Math.floor(Math.log10(min)), Math.ceil(Math.log10(max))];
  for (const steps of [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 5], [1, 3], [1]]) {
    const ticks: number[] = [];
    for (let decade = low; decade <= high; decade++)
      for (const step of steps) {
        const tick = Number((step * 10 ** decade).toPrecision(1));
        if (tick >= min && tick <= max) ticks.push(tick);
      }
    if (ticks.length <= most && ticks.length >= 2) return ticks;
  }
  const stride = Math.max(1, Math.ceil((high - low) / most));
  const ticks = [];
  for (let decade = low; decade <= high; decade += stride) ticks.push(10 ** decade);
  const inside = ticks.filter((tick) => tick >= min && tick <= max);
  return inside.length > 0 ? inside : [min, max];
}

/** Ticks of an axis that is linear around zero and logarithmic far from it. */
export function symlogTicks(min: number, max: number, threshold: number): number[] {
  const side = (limit: number) => {
    const ticks: number[] = [];
    if (limit <= threshold) return ticks;
    const first = Math.ceil(Math.log10(threshold));
    const last = Math.floor(Math.log10(limit));
    const stride = Math.max(1, Math.ceil((last - first + 1) / 3));
    for (let decade = last; decade >= first; decade -= stride) ticks.unshift(10 ** decade);
    return ticks;
  };
  return [...side(-min).map((tick) => -tick).reverse(), ...(min <= 0 && max >= 0 ? [0] : []), ...side(max)];
}
