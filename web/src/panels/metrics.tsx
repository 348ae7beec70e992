// Charts of everything that was measured, grouped by name, a chart of its own for each scale.
import { useEffect, useMemo, useReducer, useRef, useState } from "preact/hooks";
import { type CardLine, ChartCard } from "../chart/card";
import { LineSet, type MetricLine, type XMode } from "../chart/lines";
import { clusters, quantity, type Range, rangeOf, section } from "../chart/scale";
import { formatCount, formatDuration, formatShort, formatValue, shortName } from "../format";
import type { Run } from "../run";
import { useSetting } from "../settings";
import type { Store } from "../store";
import { Empty } from "./parts";

const CHARTS_AT_FIRST = 40;
const HEIGHT = 208;
const MOST_NAMES = 20; // in one chart
const FEW = 60; // so few points are shown each

interface Group {
  key: string;
  section: string;
  names: string[];
}

export function Metrics({ store }: { store: Store }) {
  const runs = store.shown.filter((run) => run.detail !== null);
  const [x, setX] = useSetting<XMode>("x", "step");
  const [log, setLog] = useSetting("log", false);
  const [smoothing, setSmoothing] = useSetting("smoothing", 0);
  const [apart, setApart] = useSetting("apart", false);
  const [filter, setFilter] = useState("");
  const [zoom, setZoom] = useState<Range | null>(null);
  const mode = store.api.live ? x : "step"; // a report holds its series by step
  const steps = Math.max(1, ...runs.map((run) => run.detail?.info.last_step ?? 1));
  const seconds = Math.max(0.001, ...runs.map((run) => run.detail?.info.seconds ?? 1));
  const span = mode === "step" ? steps : seconds;
  const least = mode === "step" ? Math.max(1, span / 5000) : span / 5000;
  const halfLife = smoothing === 0 ? 0 : least * Math.max(1, span / 4 / least) ** (smoothing / 100); // up to a quarter of the run
  const version = runs.map((run) => `${run.id} ${run.seriesVersion} ${run.epochs.length > 0}`).join();
  const groups = useMemo(() => grouped(runs, apart || runs.length > 1, filter), [version, apart, filter]);
  useEffect(() => setZoom(null), [mode, store.selected]);

  const sections = [...new Set(groups.map((group) => group.section))];
  const known = new Set(runs.flatMap((run) => [...run.series.values()].map((meta) => meta.name))).size;
  return (
    <div class="metrics">
      <div class="toolbar" role="toolbar" aria-label="How charts are drawn">
        <input type="search" placeholder="Filter metrics" aria-label="Filter metrics by name" value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />
        <label class="slider">
          <span>Smoothing</span>
          <input type="range" min={0} max={100} value={smoothing} onInput={(event) => setSmoothing(Number(event.currentTarget.value))}
            aria-valuetext={halfLife === 0 ? "off" : `half-life ${lengthText(halfLife, mode)}`} />
          <output title="After this much, a value counts half">{halfLife === 0 ? "off" : lengthText(halfLife, mode)}</output>
        </label>
        {store.api.live && (
          <div class="segments" role="group" aria-label="Horizontal axis">
            <button type="button" aria-pressed={mode === "step"} onClick={() => setX("step")}>Step</button>
            <button type="button" aria-pressed={mode === "time"} onClick={() => setX("time")}>Time</button>
          </div>
        )}
        <button type="button" class="toggle" aria-pressed={log} onClick={() => setLog(!log)} title="Logarithmic axis; around zero linear where there are values below it">Log scale</button>
        <button type="button" class="toggle" aria-pressed={apart} onClick={() => setApart(!apart)} title="One chart for each metric, or what is comparable together">One per metric</button>
        {zoom !== null && (
          <button type="button" class="primary" onClick={() => setZoom(null)}>
            Show all <span class="quiet-on">{rangeText(zoom, mode)}</span>
          </button>
        )}
      </div>
      {groups.length === 0 && (
        <Empty title={known === 0 ? "Nothing measured yet" : "No metric has this in its name"}>
          {known === 0 ? "Curves appear here with the first recorded value." : "Try another filter."}
        </Empty>
      )}
      {sections.map((name) => (
        <Section key={name} name={name} alone={sections.length === 1} groups={groups.filter((group) => group.section === name)}
          store={store} runs={runs} x={mode} log={log} halfLife={halfLife} zoom={zoom} setZoom={setZoom} />
      ))}
    </div>
  );
}

interface Shared {
  store: Store;
  runs: Run[];
  x: XMode;
  log: boolean;
  halfLife: number;
  zoom: Range | null;
  setZoom: (zoom: Range | null) => void;
}

function Section({ name, alone, groups, ...shared }: { name: string; alone: boolean; groups: Group[] } & Shared) {
  const [open, setOpen] = useState(true);
  const [most, setMost] = useState(CHARTS_AT_FIRST);
  const charts = (
    <div class="grid">
      {groups.slice(0, most).map((group) => (
        <GroupCharts key={group.key} group={group} {...shared} />
      ))}
      {groups.length > most && (
        <button type="button" class="more" onClick={() => setMost(most + CHARTS_AT_FIRST)}>
          Show more of {formatCount(groups.length - most)} further charts
        </button>
      )}
    </div>
  );
  if (alone) return charts;
  return (
    <section class="section">
      <h2>
        <button type="button" aria-expanded={open} onClick={() => setOpen(!open)} title={name}>
          <i class="chevron" /> {name === "" ? "Overall" : shortName(name)} <span class="count">{groups.length}</span>
        </button>
      </h2>
      {open && charts}
    </section>
  );
}

/** One chart, or several where the scales of a group differ too much. Loads when it comes into sight. */
function GroupCharts({ group, store, runs, x, log, halfLife, zoom, setZoom }: { group: Group } & Shared) {
  const place = useRef<HTMLDivElement>(null);
  const [visible, setVisible] = useState(false);
  const [version, changed] = useReducer((n: number) => n + 1, 0);
  const drawn = useRef<string[][]>([]);
  const due = useRef(0);
  const [shown, setShown] = useState(0);

  useEffect(() => {
    const element = place.current?.firstElementChild; // the wrapper itself has no box
    if (element == null) return;
    const observer = new IntersectionObserver((entries) => {
      const entry = entries.at(-1);
      if (entry?.target.isConnected) setVisible(entry.isIntersecting); // else it was only replaced
    }, { rootMargin: "300px" });
    observer.observe(element);
    return () => observer.disconnect();
  }, [shown]);

  const names = group.names.join("\n");
  const ids = runs.map((run) => run.id).join("\n");
  const set = useMemo(() => new LineSet(store.api, group.names, runs, (now) => {
    if (due.current !== 0 && !now) return;
    clearTimeout(due.current);
    due.current = window.setTimeout(() => requestAnimationFrame(() => {
      due.current = 0;
      changed(0);
    }), now ? 0 : 240);
  }), [names, ids]);
  useEffect(() => () => set.close(), [set]);

  const generation = runs.map((run) => run.generation).join();
  const loadNow = () => void set.load(chartWidth(place.current?.firstElementChild), x, zoom);
  useEffect(() => {
    if (visible) loadNow();
  }, [set, visible, x, zoom?.min, zoom?.max, generation]);
  useEffect(() => {
    if (!visible || !set.outdated) return;
    const timer = setTimeout(loadNow, 500);
    return () => clearTimeout(timer);
  }, [version, visible]);

  // Only when the lines have grown: the page renders more often, and new lines are drawn anew.
  const titles = runs.map((run) => run.name).join("\n");
  const charts = useMemo(() => {
    if (set.loaded) drawn.current = clusters(ranges(set.lines, group.names), drawn.current);
    return drawn.current.map((members) => ({
      members,
      lines: describe(set.lines.filter((line) => members.includes(line.name)), runs, members),
    }));
  }, [set, set.loaded, version, titles]);
  useEffect(() => setShown(set.loaded ? charts.length : 0), [set.loaded, charts.length]);
  return (
    <div class="group" ref={place}>
      {!set.loaded ? (
        <div class={`card chart waiting${visible ? "" : " idle"}`}>
          <header><h3>{shortName(group.key)}</h3></header>
          <p class="quiet">{set.error ?? "Loading…"}</p>
        </div>
      ) : (
        charts.map(({ members, lines }) => (
          <ChartCard
            key={members.join("\n")}
            title={members.length === 1 ? (members[0] ?? "") : charts.length === 1 ? group.key : common(members)}
            lines={lines}
            version={version}
            height={HEIGHT}
            log={log}
            halfLife={halfLife}
            zoom={zoom}
            idle={!visible}
            sync={`metrics-${x}`}
            xName={x === "step" ? "step" : "after"}
            formatX={x === "step" ? formatShort : formatDuration}
            readX={x === "step" ? formatCount : formatDuration}
            formatY={formatValue}
            onZoom={setZoom}
          />
        ))
      )}
    </div>
  );
}

/** What each metric's values span. */
function ranges(lines: MetricLine[], names: string[]): Map<string, Range | null> {
  return new Map(
    names.map((name) => {
      const found = lines.filter((line) => line.name === name).map((line) => rangeOf(line.y)).filter((range) => range !== null);
      const span = { min: Math.min(...found.map((r) => r.min)), max: Math.max(...found.map((r) => r.max)) };
      return [name, found.length === 0 ? null : span];
    }),
  );
}

/** Labels say only what differs; colours follow the run when there are several, else the line. */
function describe(lines: MetricLine[], runs: Run[], names: string[]): CardLine[] {
  const several = runs.length > 1;
  const ranks = new Set(lines.map((line) => line.rank)).size > 1;
  return lines.map((line, i) => {
    const parts = [];
    if (several) parts.push(line.run.name);
    if (names.length > 1 || (!several && !ranks)) parts.push(line.name);
    if (ranks && line.source === "steps") parts.push(`rank ${line.rank}`);
    const color = several && !ranks && names.length === 1 ? runs.indexOf(line.run) : i;
    const count = `${formatCount(line.total)} ${line.source === "epochs" ? "epochs" : "values"}`;
    const label = parts.join(" · ");
    return { ...line, label, color, dotted: line.x.length < FEW, last: line.y.findLast((value) => value !== null) ?? null, title: `${label === line.name ? label : `${label} (${line.name})`}\n${count}` };
  });
}

function grouped(runs: Run[], apart: boolean, filter: string): Group[] {
  const names = new Set<string>();
  for (const run of runs) {
    for (const epoch of [run.epochs[0], run.epochs.at(-1)]) for (const name of Object.keys(epoch?.metrics ?? {})) names.add(name);
    for (const meta of run.series.values()) names.add(meta.name);
  }
  const wanted = filter.trim().toLowerCase();
  const groups = new Map<string, Group>();
  for (const name of names) {
    if (wanted !== "" && !name.toLowerCase().includes(wanted)) continue;
    let key = apart ? name : quantity(name);
    for (let more = 2; (groups.get(key)?.names.length ?? 0) >= MOST_NAMES; more++) key = `${quantity(name)} (${more})`;
    const known = groups.get(key);
    if (known !== undefined) known.names.push(name);
    else groups.set(key, { key, section: section(name), names: [name] });
  }
  return [...groups.values()].sort((a, b) => Number(a.section !== "") - Number(b.section !== ""));
}

function common(names: string[]): string {
  const shown = names.slice(0, 2).map((name) => shortName(name, 24));
  return shown.join(", ") + (names.length > 2 ? ` and ${names.length - 2} more` : "");
}

function chartWidth(element: Element | null | undefined): number {
  return Math.min(2000, Math.max(300, Math.round(element?.clientWidth ?? 800)));
}

function lengthText(length: number, x: XMode): string {
  return x === "time" ? formatDuration(length) : `${formatShort(Number(length.toPrecision(2)))} steps`;
}

function rangeText(zoom: Range, x: XMode): string {
  const text = x === "time" ? formatDuration : (value: number) => formatCount(value);
  return `${x === "time" ? "" : "steps "}${text(Math.max(0, zoom.min))} – ${text(zoom.max)}`;
}
