// What a rank did, in columns of equal time: for the canvas one per pixel, for the devices' charts some hundred.
import type { Span, TimelineData } from "../types";

/** From the bottom of a strip to its top. What has another name is drawn as "other". */
export const LANES = ["compute", "data", "evaluation", "checkpoint", "sync", "wait", "other"] as const;
export type Lane = (typeof LANES)[number];

export const LANE_TEXT: Record<Lane, string> = {
  compute: "forward, backward, update",
  data: "waiting for the batch",
  evaluation: "evaluating",
  checkpoint: "saving a checkpoint",
  sync: "exchanging with other ranks",
  wait: "waiting for other ranks",
  other: "what else was recorded",
};

export interface Columns {
  /** Seconds in each lane, per column. */
  busy: Record<Lane, Float64Array>;
  /** Steps that were computed, per column. */
  steps: Float64Array;
  seconds: number;
}

export function laneOf(name: string): Lane {
  return LANES.find((lane) => lane === name) ?? "other";
}

export function columnsOf(rank: TimelineData["ranks"][number], from: number, to: number, count: number): Columns {
  const seconds = Math.max(1e-9, (to - from) / count);
  const busy = Object.fromEntries(LANES.map((lane) => [lane, new Float64Array(count)])) as Record<Lane, Float64Array>;
  const steps = new Float64Array(count);
  for (const { lane, spans } of rank.lanes) {
    const name = laneOf(lane);
    for (const [start, length, , merged, busySeconds] of spans) {
      const end = start + length;
      if (end < from || start > to) continue;
      const first = Math.max(0, Math.floor((start - from) / seconds));
      const last = Math.min(count - 1, Math.floor((end - from) / seconds));
      for (let column = first; column <= last; column++) {
        const left = from + column * seconds;
        const covered = Math.min(end, left + seconds) - Math.max(start, left);
        const part = length > 0 ? covered / length : 1;
        busy[name][column]! += part * busySeconds;
        if (name === "compute") steps[column]! += part * merged;
      }
    }
  }
  return { busy, steps, seconds };
}

export interface Shares {
  rank: number;
  /** Fractions of the time from `from` to `to`. */
  busy: Record<Lane, number>;
  idle: number;
  steps: number;
  stepsPerSecond: number;
}

/** What part of the time between `from` and `to` a rank spent on what. */
export function sharesOf(rank: TimelineData["ranks"][number], from: number, to: number): Shares {
  const { busy, steps } = columnsOf(rank, from, to, 1);
  const whole = Math.max(1e-9, to - from);
  const shares = Object.fromEntries(LANES.map((lane) => [lane, (busy[lane][0] ?? 0) / whole])) as Record<Lane, number>;
  const used = LANES.reduce((sum, lane) => sum + shares[lane], 0);
  return { rank: rank.rank, busy: shares, idle: Math.max(0, 1 - used), steps: steps[0] ?? 0, stepsPerSecond: (steps[0] ?? 0) / whole };
}

/** The spans of a rank at a moment. */
export function spansAt(rank: TimelineData["ranks"][number], time: number, tolerance: number): { lane: Lane; name: string; span: Span }[] {
  return rank.lanes.flatMap(({ lane, spans }) => {
    const span = spans.find(([start, length]) => time >= start - tolerance && time <= start + length + tolerance);
    return span === undefined ? [] : [{ lane: laneOf(lane), name: lane, span }];
  });
}

/** Where a step was computed: a span that holds it, of one or of many steps. */
export function spanOfStep(data: TimelineData, step: number): Span | null {
  for (const rank of data.ranks)
    for (const { lane, spans } of rank.lanes) {
      if (lane !== "compute") continue;
      const found = spans.findLast(([, , first]) => first !== null && first <= step);
      if (found !== undefined && found[2] !== null && step < found[2] + found[3]) return found;
    }
  return null;
}

/** Ticks of a time axis: at 1, 2, 5, 10, 15, 30 of a unit. */
export function timeTicks(from: number, to: number, most: number): number[] {
  const rough = (to - from) / Math.max(1, most);
  const decade = 10 ** Math.floor(Math.log10(rough));
  const small = [1, 2, 5, 10].map((factor) => factor * decade);
  const large = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];
  const step = (rough < 1 ? small : large).find((each) => each >= rough) ?? rough;
  const ticks = [];
  for (let tick = Math.ceil(from / step - 1e-9) * step; tick <= to; tick += step) ticks.push(tick);
  return ticks;
}
