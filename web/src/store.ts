// What the page shows: the list of runs, the chosen ones, the connection. Panels render again when it changes, not more often than 4 times a second.
import { useEffect, useReducer } from "preact/hooks";
import { type Api, ApiError, ServerApi } from "./api";
import { formatRoute, PANELS, type Panel, parseRoute } from "./route";
import { Run } from "./run";
import { openStream, type Stream } from "./stream/client";
import type { Status } from "./stream/feed";
import type { RunRow, StreamMessage } from "./types";

const RENDER_MS = 250;
const RUNS_MS = 1000;

export class Store {
  runs: RunRow[] | null = null;
  /** What keeps everything from being shown. */
  error: string | null = null;
  status: Status = { state: "connecting" };
  selected: string | null = null;
  overlaid: string[] = [];
  panel: Panel = PANELS[0];
  /** For screen readers: changes of a run's state, of the connection. */
  announcement = "";
  private readonly loaded = new Map<string, Run>();
  private readonly views = new Set<() => void>();
  private stream: Stream | null = null;
  private renderTimer: ReturnType<typeof setTimeout> | undefined;
  private lastRender = 0;
  private runsTimer: ReturnType<typeof setTimeout> | undefined;
  private chosenByHand = false;

  constructor(readonly api: Api) {}

  async start(): Promise<void> {
    addEventListener("hashchange", () => this.followRoute());
    try {
      const opening = this.api instanceof ServerApi ? this.api.open() : undefined;
      const early = this.api.runs().catch(() => null); // mostly the token is known, or not needed
      await opening;
      this.runs = (await early) ?? (await this.api.runs());
    } catch (error) {
      this.fail(error);
      setTimeout(() => void this.restart(), 2000);
      return;
    }
    this.followRoute();
    if (!__REPORT__ && this.api.live) this.stream = openStream((message) => this.take(message), (status) => this.setStatus(status));
    this.follow();
  }

  /** The runs that are drawn, the selected one first. */
  get shown(): Run[] {
    return [this.selected, ...this.overlaid].flatMap((id) => this.loaded.get(id ?? "") ?? []);
  }

  get run(): Run | null {
    return this.loaded.get(this.selected ?? "") ?? null;
  }

  go(panel: Panel): void {
    location.hash = formatRoute({ run: this.selected, overlaid: this.overlaid, panel });
  }

  select(id: string): void {
    this.chosenByHand = true;
    location.hash = formatRoute({ run: id, overlaid: this.overlaid.filter((other) => other !== id), panel: this.panel });
  }

  overlay(id: string, on: boolean): void {
    const overlaid = this.overlaid.filter((other) => other !== id);
    if (on && id !== this.selected) overlaid.push(id);
    location.hash = formatRoute({ run: this.selected, overlaid, panel: this.panel });
  }

  overlayNone(): void {
    location.hash = formatRoute({ run: this.selected, overlaid: [], panel: this.panel });
  }

  async control(action: "stop" | "save"): Promise<void> {
    const run = this.run;
    if (run === null) return;
    await this.api.control(run.id, action);
    const detail = await this.api.run(run.id);
    if (run.detail !== null) run.detail.audit = detail.audit;
    this.announce(action === "stop" ? "Stop requested" : "Checkpoint requested");
  }

  hurry(): void {
    this.stream?.hurry();
  }

  announce(text: string): void {
    this.announcement = text;
    this.changed();
  }

  /** Renders soon: at once after a pause, else when 250 ms are over. */
  changed(now = false): void {
    if (this.renderTimer !== undefined && !now) return;
    clearTimeout(this.renderTimer);
    const wait = now ? 0 : Math.max(0, this.lastRender + RENDER_MS - performance.now());
    this.renderTimer = setTimeout(() => requestAnimationFrame(() => {
      this.renderTimer = undefined;
      this.lastRender = performance.now();
      for (const view of [...this.views]) view();
    }), wait);
  }

  onRender(view: () => void): () => void {
    this.views.add(view);
    return () => this.views.delete(view);
  }

  private async restart(): Promise<void> {
    this.error = null;
    await this.start();
  }

  private fail(error: unknown): void {
    this.error = error instanceof ApiError ? error.message : String(error);
    this.changed(true);
  }

  private followRoute(): void {
    const route = parseRoute(location.hash);
    const known = new Set(this.runs?.map((row) => row.id));
    this.selected = route.run !== null && known.has(route.run) ? route.run : this.preferred();
    this.overlaid = route.overlaid.filter((id) => known.has(id) && id !== this.selected);
    this.panel = route.panel;
    this.changed(true);
    this.follow();
  }

  /** Without a choice: the newest run that is live, else the newest. */
  private preferred(): string | null {
    const newestFirst = [...(this.runs ?? [])].reverse().filter((row) => row.problem === null);
    return (newestFirst.find((row) => row.state === "running") ?? newestFirst[0] ?? this.runs?.at(-1))?.id ?? null;
  }

  private follow(): void {
    for (const id of [this.selected, ...this.overlaid])
      if (id !== null && !this.loaded.has(id)) {
        const run = new Run(id);
        this.loaded.set(id, run);
        run.problem = this.runs?.find((row) => row.id === id)?.problem ?? null;
        if (run.problem === null) void this.load(run);
      }
    const ready = this.shown.filter((run) => run.detail !== null);
    if (ready.length === 0 && this.shown.some((run) => run.problem === null)) return; // they are being loaded
    const token = this.api instanceof ServerApi ? this.api.token : null;
    this.stream?.follow(new Map(ready.map((run) => [run.id, run.seen])), token);
  }

  private async load(run: Run): Promise<void> {
    try {
      await run.load(this.api);
      this.follow();
    } catch (error) {
      run.problem = error instanceof ApiError ? error.message : String(error);
      if (error instanceof ApiError && [0, 503].includes(error.status)) setTimeout(() => void this.load(run), 2000);
    }
    this.changed(true);
  }

  private take(message: StreamMessage): void {
    if (message.event === "runs") this.refreshRuns();
    if (!("run" in message.data)) return;
    const run = this.loaded.get(message.data.run);
    if (run === undefined) return;
    if (message.event === "rows") run.add(message.data);
    else if (message.event === "info") {
      const before = run.detail?.info.state;
      run.update(message.data);
      const { state, error } = message.data.info;
      if (before !== undefined && before !== state) {
        this.announcement = `Run ${run.name} is ${state}${error ? `: ${error}` : ""}`;
        this.refreshRuns();
      }
    } else if (message.event === "reset") void this.load(run);
    else if (message.event === "problem") run.problem = message.data.problem;
    this.changed();
  }

  private setStatus(status: Status): void {
    const before = this.status.state;
    this.status = status;
    if (status.state === "lost" && before !== "lost") this.announcement = "Connection to the server lost";
    if (status.state === "open" && before !== "open") {
      this.refreshRuns(); // what began since the list was asked for
      if (this.announcement.startsWith("Connection")) {
        this.announcement = "Connected again";
        if (this.api instanceof ServerApi) void this.api.open().catch(() => undefined); // a new server: a new token
      }
    }
    this.changed(true);
  }

  /** The list, at most once a second. */
  private refreshRuns(): void {
    this.runsTimer ??= setTimeout(() => {
      this.runsTimer = undefined;
      this.api.runs().then(
        (runs) => {
          const before = this.runs?.length ?? 0;
          this.runs = runs;
          for (const row of runs) {
            const run = this.loaded.get(row.id);
            if (run === undefined || run.detail !== null || run.problem === row.problem) continue;
            run.problem = row.problem;
            if (row.problem === null) void this.load(run); // it can be read now
          }
          // Somebody who waits for the first run, or watches the newest one, is shown the new one.
          if (this.selected === null || (runs.length > before && !this.chosenByHand && parseRoute(location.hash).run === null))
            this.followRoute();
          this.changed();
        },
        () => undefined, // the connection is lost as well: shown, and tried again with it
      );
    }, RUNS_MS);
  }
}

/** Renders the component whenever the store changed. */
export function useStore(store: Store): void {
  const [, render] = useReducer((n: number) => n + 1, 0);
  useEffect(() => store.onRender(() => render(0)), [store]);
}
