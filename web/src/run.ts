// One run as the page knows it: loaded once, then kept up to date by the stream.
import { type Api, EVENTS_LOADED, TIMELINE_KINDS } from "./api";
import { lowerIsBetter, toNumber } from "./format";
import type { EpochRow, EventRow, InfoMessage, Point, ResourceRow, RowsMessage, RunDetail, RunRow, SeriesMeta } from "./types";

export interface LiveRows {
  points: Point[];
  /** The points of each line, by `lineKey`. */
  lines: ReadonlyMap<string, Point[]>;
  epochs: EpochRow[];
  resources: ResourceRow[];
}

const HISTORY_KINDS = new Set(["cut", "resumed"]); // a cut does not undo the run's own history
const RATE_EPOCHS = 8;
const RATE_SECONDS = 10;

export class Run {
  detail: RunDetail | null = null;
  readonly series = new Map<number, SeriesMeta>();
  epochs: EpochRow[] = [];
  events: EventRow[] = [];
  eventsLeftOut = false;
  /** Why it cannot be shown, in the server's words. */
  problem: string | null = null;
  /** The id up to which everything is known. */
  seen = 0;
  /** Grows when what was known is no longer true: panels ask again. */
  generation = 0;
  /** Grows with every new series. */
  seriesVersion = 0;
  /** Grows with every artifact that is new or changed. */
  artifactVersion = 0;
  private readonly listeners = new Set<(rows: LiveRows) => void>();
  private waiting: RowsMessage[] | null = [];
  private rates: [number, number][] = [];

  constructor(readonly id: string) {}

  get name(): string {
    return this.detail?.info.name || this.id;
  }

  async load(api: Api): Promise<void> {
    this.waiting = [];
    const [detail, epochs, events] = await Promise.all([api.run(this.id), api.epochs(this.id), api.events(this.id)]);
    // `run` was answered first or not: only what all three surely hold is taken as known, the rest comes again.
    this.detail = detail;
    this.series.clear();
    for (const meta of detail.series) this.series.set(meta.id, meta);
    this.seen = detail.info.last_id;
    this.epochs = epochs.filter((row) => row.id <= this.seen);
    this.events = events.events.filter((row) => row.id <= this.seen);
    this.eventsLeftOut = events.more || events.events.length >= EVENTS_LOADED;
    this.problem = null;
    this.rates = [];
    this.generation += 1;
    this.seriesVersion += 1;
    this.artifactVersion += 1;
    const waiting = this.waiting;
    this.waiting = null;
    for (const rows of waiting) this.add(rows);
  }

  /** Told of the rows that arrive from now on; returns how to end that. */
  onRows(listener: (rows: LiveRows) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  add(rows: RowsMessage): void {
    if (this.waiting !== null) return void this.waiting.push(rows);
    const seen = this.seen;
    for (const [id, name] of Object.entries(rows.names)) this.learn(Number(id), name);
    const points = rows.points.filter((row) => row[0] > seen);
    const epochs = rows.epochs.filter((row) => row.id > seen);
    const events = rows.events.filter((row) => row.id > seen);
    const resources = rows.resources.filter((row) => row[0] > seen);
    for (const point of points) this.count(point);
    const cut = events.filter((event) => event.kind === "cut").at(-1);
    this.epochs.push(...epochs);
    this.events.push(...events.filter((event) => !TIMELINE_KINDS.includes(event.kind)));
    if (cut !== undefined) this.cut(cut);
    if (rows.artifacts.length > 0 && this.detail !== null) {
      this.detail.artifacts = [...new Set([...this.detail.artifacts, ...rows.artifacts])];
      this.artifactVersion += 1;
    }
    this.seen = Math.max(seen, rows.last_id > 0 && !rows.more ? rows.last_id : 0, newest(rows));
    if (points.length + epochs.length + resources.length > 0)
      for (const listener of [...this.listeners]) listener({ points, lines: this.byLine(points), epochs, resources });
  }

  private byLine(points: Point[]): Map<string, Point[]> {
    const lines = new Map<string, Point[]>();
    for (const point of points) {
      const key = lineKey(this.series.get(point[1])?.name ?? "", point[2]);
      const line = lines.get(key);
      if (line === undefined) lines.set(key, [point]);
      else line.push(point);
    }
    return lines;
  }

  update({ info, audit }: InfoMessage): void {
    if (this.detail === null) return;
    Object.assign(this.detail.info, info);
    this.detail.audit = audit;
    const now = performance.now() / 1000;
    if (info.last_step !== null) {
      this.rates.push([now, info.last_step]);
      while (this.rates.length > 2 && now - (this.rates[0]?.[0] ?? now) > RATE_SECONDS) this.rates.shift();
    }
  }

  /** Steps a second: over the last epochs, or the last seconds where no epoch has ended yet. */
  get stepsPerSecond(): number | null {
    const [first, last] = [this.epochs.at(-RATE_EPOCHS), this.epochs.at(-1)];
    if (first?.step != null && last?.step != null && last.step > first.step && last.time > first.time)
      return (last.step - first.step) / (last.time - first.time);
    const [start, end] = [this.rates[0], this.rates.at(-1)];
    if (start !== undefined && end !== undefined && end[0] - start[0] > 1 && end[1] > start[1])
      return (end[1] - start[1]) / (end[0] - start[0]);
    const info = this.detail?.info;
    return info?.last_step && info.seconds > 0 ? info.last_step / info.seconds : null;
  }

  get progress(): number | null {
    const info = this.detail?.info;
    if (info === undefined) return null;
    if (info.total_steps && info.last_step !== null) return Math.min(1, info.last_step / info.total_steps);
    if (info.total_epochs) return Math.min(1, ((info.last_epoch ?? -1) + 1) / info.total_epochs);
    return null;
  }

  /** Seconds until it is through; null where nobody can tell. */
  get eta(): number | null {
    const info = this.detail?.info;
    if (info?.state !== "running") return null;
    const rate = this.stepsPerSecond;
    if (info.total_steps && info.last_step !== null && rate) return (info.total_steps - info.last_step) / rate;
    const done = (info.last_epoch ?? -1) + 1;
    const recent = this.epochs.slice(-RATE_EPOCHS).map((epoch) => epoch.seconds ?? NaN);
    const mean = recent.reduce((sum, seconds) => sum + seconds, 0) / recent.length;
    return info.total_epochs && Number.isFinite(mean) ? (info.total_epochs - done) * mean : null;
  }

  private learn(id: number, name: string): void {
    if (this.series.has(id)) return;
    this.series.set(id, { id, name, count: 0, nan: 0, inf: 0, ranks: [] });
    this.seriesVersion += 1;
  }

  private count([, id, rank, , , , , kind]: Point): void {
    const meta = this.series.get(id);
    if (meta === undefined) return;
    meta.count += 1;
    if (kind === 1) meta.nan += 1;
    else if (kind > 1) meta.inf += 1;
    if (meta.ranks.includes(rank)) return;
    meta.ranks = [...meta.ranks, rank].sort((a, b) => a - b);
    this.seriesVersion += 1;
  }

  private cut({ id, step, data }: EventRow): void {
    const mark = typeof data.after_id === "number" ? data.after_id : id; // rows of the same step, recorded later
    const stays = (row: { id: number; step: number | null }) =>
      row.id >= id || row.step === null || (row.step <= (step ?? 0) && row.id <= mark);
    this.epochs = this.epochs.filter(stays);
    this.events = this.events.filter((row) => HISTORY_KINDS.has(row.kind) || stays(row));
    this.rates = [];
    this.generation += 1;
  }
}

/** What tells a run's lines apart: a metric of a rank. */
export function lineKey(name: string, rank: number): string {
  return `${rank} ${name}`;
}

function newest(rows: RowsMessage): number {
  return Math.max(
    0,
    rows.points.at(-1)?.[0] ?? 0,
    rows.resources.at(-1)?.[0] ?? 0,
    rows.epochs.at(-1)?.id ?? 0,
    rows.events.at(-1)?.id ?? 0,
  );
}

/** The epoch metrics of a row of the list that fit into a line, best value first where the name tells what is best. */
export function headline(row: RunRow, most: number): { name: string; value: number; best: "lowest" | "highest" | null }[] {
  const found = Object.keys({ ...row.best, ...row.last }).map((name) => {
    const least = lowerIsBetter(name);
    const best = row.best[name];
    if (best === undefined || least === null) return { name, value: toNumber(row.last[name]), best: null };
    return { name, value: toNumber(least ? best.min : best.max), best: least ? ("lowest" as const) : ("highest" as const) };
  });
  return found.slice(0, most);
}

