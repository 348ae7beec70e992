// The data of a group of metrics: loaded thinned for the width of a chart, then grown by what the stream brings.
import type { Api } from "../api";
import { toNumber } from "../format";
import { lineKey, type LiveRows, type Run } from "../run";
import type { Point, SeriesData } from "../types";
import type { Line } from "./plot";
import type { Range } from "./scale";

export type XMode = "step" | "time";

/** A line on a chart with where it comes from. */
export interface MetricLine extends Line {
  run: Run;
  name: string;
  rank: number;
  /** One value for each epoch, or one for each step. */
  source: "steps" | "epochs";
  total: number;
  notFinite: number;
}

const REFRESH_POINTS = 5; // times the width: then the server thins it again
const MOST_POINTS = 20; // times the width: in a tab that nobody sees nothing is asked for, and nothing piles up
const BATCH_MS = 12;

export class LineSet {
  lines: MetricLine[] = [];
  loaded = false;
  error: string | null = null;
  /** Whether it has grown so much, or changed so, that it should be loaded again. */
  outdated = false;
  private width = 800;
  private x: XMode = "step";
  private zoom: Range | null = null;
  private request = 0;
  private readonly stops: (() => void)[] = [];

  constructor(
    private readonly api: Api,
    readonly names: readonly string[],
    private readonly runs: readonly Run[],
    /** `now`: it was loaded; else it has only grown. */
    private readonly onChange: (now: boolean) => void,
  ) {
    for (const run of runs) this.stops.push(run.onRows((rows) => this.append(run, rows)));
  }

  close(): void {
    for (const stop of this.stops) stop();
    this.request += 1;
  }

  async load(width: number, x: XMode, zoom: Range | null): Promise<void> {
    const request = ++this.request;
    this.outdated = false;
    const late: [Run, LiveRows][] = []; // what arrives while the server answers
    const stops = this.runs.map((run) => run.onRows((rows) => late.push([run, rows])));
    try {
      const found = (await Promise.all(this.runs.map((run) => this.loadRun(run, width, x, zoom)))).flat();
      if (request !== this.request) return;
      [this.width, this.x, this.zoom] = [width, x, zoom];
      this.lines = found;
      this.loaded = true;
      this.error = null;
      for (const [run, rows] of late) this.append(run, rows); // `grow` leaves out what the answer held already
    } catch (error) {
      if (request !== this.request) return;
      this.error = error instanceof Error ? error.message : String(error);
    } finally {
      for (const stop of stops) stop();
    }
    this.onChange(true);
  }

  private async loadRun(run: Run, width: number, x: XMode, zoom: Range | null): Promise<MetricLine[]> {
    const shift = x === "time" ? (run.detail?.info.started ?? 0) : 0;
    const ids = new Map<number, string>();
    for (const meta of run.series.values()) if (this.names.includes(meta.name)) ids.set(meta.id, meta.name);
    const range = { from: zoom && zoom.min + shift, to: zoom && zoom.max + shift };
    const series = ids.size === 0 ? [] : await batched(this.api, run.id, [...ids.keys()], { x, width, ...range });
    return this.names.flatMap((name) => [
      ...series
        .filter((data) => ids.get(data.id) === name)
        .map((data) => ({
          ...this.describe(run, name, data.rank, "steps"),
          x: data.x.map((at) => at - shift),
          y: data.y.slice(),
          gaps: data.gaps.map(([at]) => at - shift),
          total: data.total,
          notFinite: data.not_finite,
        })),
      ...([...ids.values()].includes(name) ? [] : this.epochLine(run, name, x, shift)), // its mean would only repeat it
    ]);
  }

  private describe<S extends "steps" | "epochs">(run: Run, name: string, rank: number, source: S) {
    return { key: JSON.stringify([run.id, name, rank, source]), label: name, color: 0, run, name, rank, source };
  }

  private epochLine(run: Run, name: string, x: XMode, shift: number): MetricLine[] {
    const line: MetricLine = { ...this.describe(run, name, 0, "epochs"), x: [], y: [], gaps: [], total: 0, notFinite: 0 };
    for (const epoch of run.epochs) {
      const value = epoch.metrics[name];
      if (value === undefined) continue;
      const at = x === "time" ? epoch.time - shift : (epoch.step ?? epoch.number);
      push(line, at, toNumber(value));
    }
    return line.total > 0 ? [line] : [];
  }

  private append(run: Run, rows: LiveRows): void {
    if (!this.loaded) return;
    const shift = this.x === "time" ? (run.detail?.info.started ?? 0) : 0;
    let grown = false;
    for (const line of this.lines) {
      if (line.run !== run || line.source === "epochs") continue;
      const points = rows.lines.get(lineKey(line.name, line.rank));
      if (points === undefined) continue;
      if (line.x.length < MOST_POINTS * this.width) grown = grow(line, points, this.x, shift, this.zoom) || grown;
      if (line.x.length > REFRESH_POINTS * this.width) this.outdated = true;
    }
    const steps = new Set(this.lines.filter((line) => line.run === run && line.source === "steps").map((line) => line.name));
    const means = this.names.filter((name) => !steps.has(name) && rows.epochs.some((epoch) => name in epoch.metrics));
    if (means.length > 0) {
      const others = this.lines.filter((line) => line.run !== run || !means.includes(line.name));
      const renewed = means.flatMap((name) => this.epochLine(run, name, this.x, shift));
      const old = this.lines.length;
      this.lines = [...others, ...renewed].sort((a, b) => this.order(a) - this.order(b));
      if (this.lines.length !== old) this.outdated = true;
      grown = true;
    }
    if (this.unknownLine(run, rows)) this.outdated = true;
    if (grown || this.outdated) this.onChange(false);
  }

  private order(line: MetricLine): number {
    return this.runs.indexOf(line.run) * 1e6 + this.names.indexOf(line.name) * 1e3 + (line.source === "epochs" ? 999 : line.rank);
  }

  private unknownLine(run: Run, rows: LiveRows): boolean {
    const known = new Set(this.lines.filter((line) => line.run === run && line.source === "steps").map((line) => lineKey(line.name, line.rank)));
    for (const [key, [point]] of rows.lines) {
      const name = run.series.get(point?.[1] ?? -1)?.name;
      if (name !== undefined && this.names.includes(name) && !known.has(key)) return true;
    }
    return false;
  }
}

/** Adds a line's new points in sight; whether there were any. */
function grow(line: MetricLine, points: Point[], x: XMode, shift: number, zoom: Range | null): boolean {
  let grown = false;
  for (const [, , , step, , time, value, kind] of points) {
    const at = x === "time" ? time - shift : step;
    if (at <= (line.x.at(-1) ?? -Infinity)) continue; // in the answer already
    if (zoom !== null && (at < zoom.min || at > zoom.max)) continue;
    push(line, at, kind === 0 ? (value ?? NaN) : NaN);
    grown = true;
  }
  return grown;
}

function push(line: MetricLine, x: number, y: number): void {
  const finite = Number.isFinite(y);
  line.x.push(x);
  line.y.push(finite ? y : null);
  line.total += 1;
  if (finite) return;
  line.gaps.push(x);
  line.notFinite += 1;
}

// Charts that ask at the same moment share a request.
interface Ask {
  series: number[];
  done: (found: SeriesData[]) => void;
  failed: (error: unknown) => void;
}

const waiting = new Map<string, Ask[]>();

function batched(
  api: Api,
  run: string,
  series: number[],
  query: { x: XMode; width: number; from: number | null; to: number | null },
): Promise<SeriesData[]> {
  const key = JSON.stringify([run, query]);
  return new Promise((done, failed) => {
    const asks = waiting.get(key);
    if (asks !== undefined) return void asks.push({ series, done, failed });
    const first: Ask[] = [{ series, done, failed }];
    waiting.set(key, first);
    setTimeout(() => {
      waiting.delete(key);
      const all = [...new Set(first.flatMap((ask) => ask.series))];
      api
        .series(run, all, { x: query.x, width: query.width, from: query.from ?? undefined, to: query.to ?? undefined })
        .then(
          (found) => {
            for (const ask of first) ask.done(found.filter((line) => ask.series.includes(line.id)));
          },
          (error: unknown) => {
            for (const ask of first) ask.failed(error);
          },
        );
    }, BATCH_MS);
  });
}
