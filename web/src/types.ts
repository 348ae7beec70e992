// What the server answers; see docs/design/monitor.md. Times are seconds since 1970.

export type RunState = "running" | "finished" | "stopped" | "failed" | "stale";
/** A metric's value; JSON has no NaN, so what is not finite is its name. */
export type Value = number | "nan" | "inf" | "-inf";
export type NotFinite = "nan" | "inf" | "-inf";

export interface RunRow {
  id: string;
  name: string | null;
  state: RunState | null;
  error: string | null;
  started: number | null;
  ended: number | null;
  seconds: number | null;
  epoch: number | null;
  total_epochs: number | null;
  step: number | null;
  total_steps: number | null;
  last: Record<string, Value>;
  best: Record<string, { min: Value; max: Value }>;
  problem: string | null;
}

export interface LiveInfo {
  state: RunState;
  error: string | null;
  ended: number | null;
  seconds: number;
  heartbeat: number;
  last_epoch: number | null;
  last_step: number | null;
  total_epochs: number | null;
  total_steps: number | null;
  last_id: number;
}

export interface RunInfo extends LiveInfo {
  run_id: string;
  name: string | null;
  started: number;
  host: string;
  pid: number;
  command: string;
  git_commit: string | null;
  git_dirty: boolean | null;
  versions: Record<string, string>;
  hardware: Record<string, unknown>;
  seeds: Record<string, number>;
}

export interface Setting {
  path: string;
  value: unknown;
  origin: string | null;
}

export interface SeriesMeta {
  id: number;
  name: string;
  count: number;
  nan: number;
  inf: number;
  ranks: number[];
}

export interface AuditRow {
  id: number;
  time: number;
  action: string;
  origin: string;
  taken: number | null;
  outcome: string | null;
}

export interface RunDetail {
  info: RunInfo;
  config: Setting[];
  series: SeriesMeta[];
  artifacts: string[];
  audit: AuditRow[];
}

export interface SeriesData {
  id: number;
  rank: number;
  x: number[];
  y: (number | null)[];
  gaps: [number, NotFinite][];
  not_finite: number;
  total: number;
}

export interface EpochRow {
  id: number;
  number: number;
  step: number | null;
  time: number;
  seconds: number | null;
  metrics: Record<string, Value>;
}

export interface EventRow {
  id: number;
  time: number;
  step: number | null;
  rank: number;
  kind: string;
  start: number;
  seconds: number | null;
  data: Record<string, unknown>;
}

/** start, seconds, first step in it, how many spans were merged into it, seconds of it that were really in that lane */
export type Span = [number, number, number | null, number, number];

export interface Mark {
  id?: number;
  time: number;
  step: number | null;
  rank: number;
  kind: string;
  data: Record<string, unknown>;
}

export interface TimelineData {
  from: number;
  to: number;
  ranks: { rank: number; lanes: { lane: string; spans: Span[] }[] }[];
  marks: Mark[];
  marks_left_out: number;
}

export interface GpuColumns {
  gpu: number;
  name: string;
  utilisation_percent: (number | null)[];
  vram_used_bytes: (number | null)[];
  vram_total_bytes: (number | null)[];
}

export interface ResourceData {
  time: number[];
  cpu_percent: number[];
  machine_cpu_percent: number[];
  rss_bytes: number[];
  ram_used_bytes: number[];
  ram_total_bytes: number[];
  gpus: GpuColumns[];
}

/** id, series id, rank, step, epoch, time, value, 0 finite | 1 NaN | 2 inf | 3 -inf */
export type Point = [number, number, number, number, number | null, number, number | null, number];
/** id, time, cpu, machine cpu, rss, ram used, ram total, [gpu, name, utilisation, vram used, vram total] of each GPU */
export type ResourceRow = [
  number,
  number,
  number,
  number,
  number,
  number,
  number,
  [number, string, number | null, number, number][],
];

export interface RowsMessage {
  run: string;
  names: Record<string, string>;
  points: Point[];
  epochs: EpochRow[];
  events: EventRow[];
  resources: ResourceRow[];
  artifacts: string[];
  last_id: number;
  more: boolean;
}

export interface InfoMessage {
  run: string;
  info: LiveInfo;
  audit: AuditRow[];
}

export type StreamMessage =
  | { event: "rows"; data: RowsMessage }
  | { event: "info"; data: InfoMessage }
  | { event: "runs"; data: object }
  | { event: "reset"; data: { run: string } }
  | { event: "problem"; data: { run: string; problem: string | null } }
  | { event: "bye"; data: object };

/** What save_html puts into the single file. */
export interface ReportData {
  format: 1;
  saved: number;
  runs: RunRow[];
  data: Record<
    string,
    {
      run: RunDetail;
      series: { series: SeriesData[] };
      epochs: { epochs: EpochRow[] };
      events: { events: EventRow[] };
      timeline: TimelineData;
      resources: ResourceData;
      artifacts: Record<string, string>;
    }
  >;
}
