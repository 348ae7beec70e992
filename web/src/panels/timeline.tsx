// What every rank did when: from the whole run down to a single step.
import { useCallback, useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { formatAny, formatCount, formatDuration, formatPercent, formatShort } from "../format";
import { remember } from "../inspect";
import type { Run } from "../run";
import type { Store } from "../store";
import { useTheme } from "../theme";
import { LANE_TEXT, LANES, sharesOf, spanOfStep, spansAt } from "../timeline/columns";
import { draw, GAP, heightOf, LEFT, STRIP, TOP, type View } from "../timeline/draw";
import type { Mark, TimelineData } from "../types";
import { Empty } from "./parts";

const SHORTEST = 1e-5; // seconds in sight
const LIVE_MS = 1000;
const RELOAD_MS = 120;

interface Tip {
  x: number;
  y: number;
  lines: string[];
}

export function Timeline({ store, run }: { store: Store; run: Run }) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [data, setData] = useState<TimelineData | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [view, setView] = useState<View | null>(null); // null: the whole run, also while it grows
  const [width, setWidth] = useState(0);
  const [tip, setTip] = useState<Tip | null>(null);
  const [mark, setMark] = useState<Mark | null>(null);
  const [step, setStep] = useState("");
  const whole = useRef<View>({ from: 0, to: 1 });
  const theme = useTheme();
  const started = run.detail?.info.started ?? 0;

  const load = useCallback(
    async (wanted: View | null): Promise<TimelineData> => {
      const found = await store.api.timeline(run.id, Math.max(200, Math.round(width - LEFT)), wanted?.from, wanted?.to);
      if (wanted === null) whole.current = { from: found.from, to: Math.max(found.to, found.from + 0.001) };
      return found;
    },
    [run.id, width],
  );

  useEffect(() => {
    setView(null);
    setData(null);
  }, [run.id]);
  useEffect(() => {
    if (width === 0) return;
    let gone = false;
    let busy = false;
    const fetchNow = async () => {
      if (busy) return;
      busy = true;
      try {
        const found = await load(view);
        if (gone) return;
        setData(found);
        setError(null);
      } catch (failure) {
        if (!gone) setError(failure instanceof Error ? failure.message : String(failure));
      } finally {
        busy = false;
      }
    };
    const first = setTimeout(() => void fetchNow(), data === null ? 0 : RELOAD_MS);
    const live = view === null && run.detail?.info.state === "running" ? setInterval(() => void fetchNow(), LIVE_MS) : undefined;
    return () => {
      gone = true;
      clearTimeout(first);
      clearInterval(live);
    };
  }, [load, view, run.generation, run.detail?.info.state]);

  useLayoutEffect(() => {
    const element = box.current;
    if (element === null) return;
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    setWidth(element.clientWidth);
    return () => observer.disconnect();
  }, []);

  const shown: View = view ?? whole.current;
  useLayoutEffect(() => {
    if (canvas.current !== null && data !== null && width > 0) draw(canvas.current, data, shown, started, width, mark);
  }, [data, view, width, theme, mark]);
  useEffect(() => remember(() => ({ title: "timeline", view: shown, spans: data?.ranks.flatMap((rank) => rank.lanes.flatMap((lane) => lane.spans)).length ?? 0, data })), [data, view]);

  const show = (next: View) => {
    const length = Math.max(SHORTEST, next.to - next.from);
    const { from, to } = whole.current;
    if (length >= to - from) return setView(null);
    const start = Math.min(Math.max(next.from, from), to - length);
    setView({ from: start, to: start + length });
  };
  const zoomAt = (time: number, factor: number) =>
    show({ from: time - (time - shown.from) * factor, to: time + (shown.to - time) * factor });
  const pan = (fraction: number) => {
    const by = (shown.to - shown.from) * fraction;
    show({ from: shown.from + by, to: shown.to + by });
  };
  const timeAt = (x: number) => shown.from + ((x - LEFT) / Math.max(1, width - LEFT)) * (shown.to - shown.from);

  // Not passive: the page must not scroll while the wheel zooms.
  const wheel = useRef<(event: WheelEvent) => void>(() => {});
  wheel.current = (event) => {
    if (!event.ctrlKey && !event.shiftKey && Math.abs(event.deltaY) > Math.abs(event.deltaX) && document.activeElement !== box.current) return;
    event.preventDefault();
    const rect = box.current?.getBoundingClientRect();
    if (rect === undefined) return;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / 800);
    else zoomAt(timeAt(event.clientX - rect.left), Math.exp(event.deltaY / 400));
  };
  useEffect(() => {
    const element = box.current;
    const listener = (event: WheelEvent) => wheel.current(event);
    element?.addEventListener("wheel", listener, { passive: false });
    return () => element?.removeEventListener("wheel", listener);
  }, []);

  const drag = useRef<{ x: number; view: View } | null>(null);
  const onMove = (event: PointerEvent) => {
    const rect = box.current?.getBoundingClientRect();
    if (rect === undefined || data === null) return;
    const [x, y] = [event.clientX - rect.left, event.clientY - rect.top];
    if (drag.current !== null) {
      const by = ((drag.current.x - x) / Math.max(1, width - LEFT)) * (drag.current.view.to - drag.current.view.from);
      if (Math.abs(drag.current.x - x) > 3) show({ from: drag.current.view.from + by, to: drag.current.view.to + by });
      setTip(null);
      return;
    }
    const lines = tipFor(data, x, y, timeAt(x), shown, width, started);
    setTip(lines.length === 0 ? null : { x: Math.min(x + 12, width - 230), y: y + 14, lines });
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const middle = (shown.from + shown.to) / 2;
    if (event.key === "ArrowLeft") pan(-0.2);
    else if (event.key === "ArrowRight") pan(0.2);
    else if (event.key === "+" || event.key === "=") zoomAt(middle, 0.5);
    else if (event.key === "-") zoomAt(middle, 2);
    else if (event.key === "0" || event.key === "Home" || event.key === "Escape") setView(null);
    else return;
    event.preventDefault();
  };
  const goToStep = async () => {
    const wanted = Number(step);
    if (!Number.isInteger(wanted) || data === null) return;
    let found = data;
    let span = spanOfStep(found, wanted);
    if (span === null) span = spanOfStep((found = await load(null)), wanted);
    for (let tries = 0; span !== null && span[3] > 1 && tries < 8; tries++) {
      found = await load({ from: span[0], to: span[0] + span[1] });
      span = spanOfStep(found, wanted);
    }
    if (span === null) return store.announce(`Step ${wanted} is not on the timeline`);
    show({ from: span[0] - span[1] * 2, to: span[0] + span[1] * 3 });
    box.current?.focus();
  };

  const empty = data !== null && data.ranks.length === 0;
  return (
    <div class="timeline">
      <section class="card" aria-label="Timeline">
        <div class="toolbar">
          <ul class="lanes" aria-label="Colours">
            {LANES.filter((lane) => data?.ranks.some((rank) => rank.lanes.some((each) => each.lane === lane))).map((lane) => (
              <li key={lane} title={LANE_TEXT[lane]}><i class={`swatch lane-${lane}`} />{lane}</li>
            ))}
          </ul>
          <span class="spacer" />
          <form class="goto" onSubmit={(event) => { event.preventDefault(); void goToStep(); }}>
            <label>Step <input type="text" inputMode="numeric" size={7} value={step} onInput={(event) => setStep(event.currentTarget.value)} /></label>
            <button type="submit">Go</button>
          </form>
          <button type="button" aria-label="Zoom in" onClick={() => zoomAt((shown.from + shown.to) / 2, 0.5)}>+</button>
          <button type="button" aria-label="Zoom out" onClick={() => zoomAt((shown.from + shown.to) / 2, 2)}>−</button>
          <button type="button" disabled={view === null} onClick={() => setView(null)}>Show all</button>
        </div>
        {error !== null && <p class="notice warn">{error}</p>}
        <div
          class={drag.current === null ? "canvas" : "canvas dragging"}
          ref={box}
          tabIndex={0}
          role="group"
          aria-roledescription="timeline"
          aria-label={`Timeline of ${data?.ranks.length ?? 0} ranks, ${formatDuration(shown.to - shown.from)} in sight. Arrow keys move, plus and minus zoom, zero shows all. The table below tells the same in numbers.`}
          onKeyDown={onKey}
          onPointerDown={(event) => { drag.current = { x: event.clientX - (box.current?.getBoundingClientRect().left ?? 0), view: shown }; box.current?.setPointerCapture(event.pointerId); }}
          onPointerUp={() => { drag.current = null; }}
          onPointerCancel={() => { drag.current = null; }}
          onPointerMove={onMove}
          onPointerLeave={() => setTip(null)}
          onDblClick={(event) => zoomAt(timeAt(event.clientX - (box.current?.getBoundingClientRect().left ?? 0)), 0.25)}
        >
          <canvas ref={canvas} aria-hidden="true" />
          {tip !== null && (
            <div class="tip" style={{ left: `${Math.max(0, tip.x)}px`, top: `${tip.y}px` }}>
              {tip.lines.map((line, i) => <div key={i} class={i === 0 ? "tip-title" : undefined}>{line}</div>)}
            </div>
          )}
        </div>
        {empty && <Empty title="No step on the timeline yet">The Trainer records what each step took; it appears here within a second.</Empty>}
        <p class="quiet hint">
          In sight: {formatDuration(shown.to - shown.from)}. Drag to move, wheel with Ctrl (or after a click) to zoom, double-click to look closer.
          The height of a colour is its part of the time; empty is idle.
        </p>
      </section>
      {data !== null && !empty && <ShareTable data={data} view={shown} />}
      {data !== null && data.marks.length > 0 && (
        <section class="card" aria-label="Marks">
          <h2>Marks <span class="count">{data.marks.length + data.marks_left_out}</span></h2>
          <ol class="marks">
            {data.marks.slice(-100).map((each, i) => (
              <li key={each.id ?? i}>
                <button type="button" class={`link kind-${each.kind}`} onMouseEnter={() => setMark(each)} onMouseLeave={() => setMark(null)} onFocus={() => setMark(each)} onBlur={() => setMark(null)}
                  onClick={() => { const half = Math.max(0.5, (whole.current.to - whole.current.from) / 40); show({ from: each.time - half, to: each.time + half }); }}>
                  {markTitle(each)}
                </button>
                <span class="quiet"> after {formatDuration(each.time - started)}</span> <span>{markText(each)}</span>
              </li>
            ))}
          </ol>
          {data.marks_left_out > 0 && <p class="quiet">{formatCount(data.marks_left_out)} more: zoom in to see them.</p>}
        </section>
      )}
    </div>
  );
}

function ShareTable({ data, view }: { data: TimelineData; view: View }) {
  const rows = data.ranks.map((rank) => sharesOf(rank, view.from, view.to));
  const lanes = LANES.filter((lane) => rows.some((row) => row.busy[lane] > 0));
  return (
    <div class="card table" tabIndex={0} role="region" aria-label="Parts of the time in sight">
      <table>
        <thead>
          <tr>
            <th scope="col">Rank</th>
            {lanes.map((lane) => <th key={lane} scope="col" title={LANE_TEXT[lane]}><i class={`swatch lane-${lane}`} /> {lane}</th>)}
            <th scope="col" title="Neither computing nor waiting for anything that was recorded">idle</th>
            <th scope="col">steps</th>
            <th scope="col">steps/s</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.rank}>
              <th scope="row">{row.rank}</th>
              {lanes.map((lane) => <td key={lane}>{formatPercent(row.busy[lane])}</td>)}
              <td>{formatPercent(row.idle)}</td>
              <td>{formatCount(row.steps)}</td>
              <td>{formatShort(Number(row.stepsPerSecond.toPrecision(3)))}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function tipFor(data: TimelineData, x: number, y: number, time: number, view: View, width: number, started: number): string[] {
  const pixel = (view.to - view.from) / Math.max(1, width - LEFT);
  if (y < TOP - 8) {
    const near = data.marks.filter((mark) => Math.abs(mark.time - time) < 6 * pixel);
    return near.slice(0, 4).flatMap((mark) => [markTitle(mark), markText(mark)].filter((text) => text !== ""));
  }
  const row = Math.floor((y - TOP) / (STRIP + GAP));
  const rank = data.ranks[row];
  if (rank === undefined || x < LEFT || y > heightOf(data.ranks.length)) return [];
  const lines = [`Rank ${rank.rank}, after ${formatDuration(time - started)}`];
  for (const { name, span } of spansAt(rank, time, pixel / 2)) {
    const [, seconds, step, count, busy] = span;
    if (count === 1) lines.push(`${name}: ${formatDuration(seconds)}${step === null ? "" : ` (step ${formatCount(step)})`}`);
    else lines.push(`${name}: ${formatDuration(busy)} of ${formatDuration(seconds)}, ${formatCount(count)} spans`);
  }
  if (lines.length === 1) lines.push("idle");
  return lines;
}

function markTitle(mark: Mark): string {
  if (mark.kind === "anchor") return "Anchor changed";
  if (mark.kind === "share") return "Batch shares changed";
  return mark.kind.charAt(0).toUpperCase() + mark.kind.slice(1);
}

function markText(mark: Mark): string {
  const { share, anchor, text } = mark.data;
  if (share !== null && typeof share === "object")
    return Object.entries(share).map(([rank, part]) => `rank ${rank}: ${formatPercent(Number(part))}`).join(", ");
  if (anchor !== undefined) return `every ${formatAny(anchor)} steps`;
  return typeof text === "string" ? text : formatAny(mark.data);
}
