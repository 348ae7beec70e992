// A chart with its title and its legend: switch lines on and off, solo, values under the cursor, keyboard.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { shortName } from "../format";
import { remember } from "../inspect";
import { useTheme } from "../theme";
import { drawSoon, forget } from "./frames";
import { type Line, Plot, type PlotOptions } from "./plot";
import type { Range } from "./scale";

export interface CardLine extends Line {
  /** The newest value, for the legend. */
  last?: number | null;
  /** More about the line, for a tooltip. */
  title?: string;
  notFinite?: number;
}

interface Props extends PlotOptions {
  title: string;
  subtitle?: string;
  lines: CardLine[];
  /** Grows when the content of `lines` has. */
  version: number;
  onZoom: (zoom: Range | null) => void;
  /** The name of x, for the read-out. */
  xName: string;
  /** x itself there, where the axis has it shorter. */
  readX?: (x: number) => string;
  legend?: boolean;
  /** Out of sight: drawn when it comes into sight. */
  idle?: boolean;
}

const LEGEND_LINES = 12;

export function ChartCard(props: Props) {
  const { title, lines, version } = props;
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<Plot | null>(null);
  const handlers = useRef(props);
  handlers.current = props;
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const [cursor, setCursor] = useState<{ x: number; values: (number | null)[] } | null>(null);
  const [all, setAll] = useState(false);
  const [spoken, setSpoken] = useState("");
  const theme = useTheme();

  useLayoutEffect(() => {
    const element = box.current;
    if (element === null) return;
    const made = new Plot(element, handlers.current, {
      onZoom: (zoom) => handlers.current.onZoom(zoom),
      onCursor: (x, values) => setCursor(x === null ? null : { x, values }),
    });
    plot.current = made;
    const observer = new ResizeObserver(() => made.resize());
    observer.observe(element);
    return () => {
      observer.disconnect();
      forget(made);
      made.destroy();
      plot.current = null;
    };
  }, []);

  const { height, log, halfLife, zoom, sync, idle = false } = props;
  useLayoutEffect(() => {
    const chart = plot.current;
    if (chart === null || (idle && chart.drawn)) return;
    if (chart.drawn) drawSoon(chart, () => chart.set(handlers.current.lines, hidden, handlers.current));
    else chart.set(lines, hidden, handlers.current);
  }, [lines, version, hidden, height, log, halfLife, zoom, sync, idle]);
  useEffect(() => plot.current?.restyle(), [theme]);
  useEffect(
    () =>
      remember(() => ({
        title,
        lines: handlers.current.lines.map(({ key, label, x, y, gaps }) => ({ key, label, x, y, gaps })),
        hidden: [...hidden],
        zoom: handlers.current.zoom,
        log: handlers.current.log,
        ...plot.current?.inspect(),
      })),
    [title, hidden],
  );

  const toggle = (key: string) => {
    const next = new Set(hidden);
    if (!next.delete(key)) next.add(key);
    setHidden(next);
  };
  const solo = (key: string) => {
    const others = lines.map((line) => line.key).filter((other) => other !== key);
    const already = !hidden.has(key) && others.every((other) => hidden.has(other));
    setHidden(new Set(already ? [] : others));
  };
  const onKey = (event: KeyboardEvent) => {
    const chart = plot.current;
    if (chart === null || event.altKey || event.ctrlKey || event.metaKey) return;
    const far = event.shiftKey ? 10 : 1;
    if (event.key === "ArrowLeft") chart.moveCursor(-far);
    else if (event.key === "ArrowRight") chart.moveCursor(far);
    else if (event.key === "+" || event.key === "=") chart.zoomBy(0.5);
    else if (event.key === "-") chart.zoomBy(2);
    else if (event.key === "0" || event.key === "Escape") props.onZoom(null);
    else return;
    event.preventDefault();
    if (event.key.startsWith("Arrow")) setTimeout(() => setSpoken(readout(handlers.current, cursorNow.current)), 300);
  };
  const cursorNow = useRef(cursor);
  cursorNow.current = cursor;

  const summary = useMemo(() => describe(title, lines, props.formatY), [title, lines, version]);
  const listed = all ? lines : lines.slice(0, LEGEND_LINES);
  const oneLine = lines.length === 1;
  return (
    <section class="card chart" aria-label={`Chart: ${shortName(title)}`} data-chart={title}>
      <header>
        <h3 title={title.length > 40 || title.includes("\n") ? title : undefined}>{shortName(title)}</h3>
        {props.subtitle && <span class="quiet">{props.subtitle}</span>}
        <span class="readout">{cursor !== null && whereText(props, cursor.x)}</span>
      </header>
      <div
        class="plot"
        ref={box}
        role="group"
        aria-roledescription="chart"
        aria-label={`${summary} Arrow keys read values, plus and minus zoom, zero shows all.`}
        tabIndex={0}
        onKeyDown={onKey}
      />
      <p class="visually-hidden" aria-live="polite">{spoken}</p>
      {props.legend !== false && (
        <ul class="legend" aria-label={`Lines of ${shortName(title)}`}>
          {listed.map((line, i) => {
            const value = cursor === null ? line.last : cursor.values[i];
            return (
              <li key={line.key} class={hidden.has(line.key) ? "off" : ""}>
                <button
                  type="button"
                  class="line"
                  aria-pressed={!hidden.has(line.key)}
                  title={line.title ?? line.label}
                  disabled={oneLine}
                  onClick={() => toggle(line.key)}
                  onDblClick={() => solo(line.key)}
                >
                  <i class={`swatch line-${line.color % 10}${line.color >= 10 ? " dashed" : ""}`} />
                  <span class="label">{shortName(line.label, 44)}</span>
                </button>
                <output class="value">{value == null ? "–" : props.formatY(value)}</output>
                {(line.notFinite ?? 0) > 0 && (
                  <span class="badge warn" title={`${line.notFinite} values are NaN or infinite: crosses at the lower edge`}>
                    {line.notFinite} not finite
                  </span>
                )}
                {!oneLine && (
                  <button type="button" class="solo" aria-label={`Show only ${shortName(line.label, 44)}`} title="Only this line; again: all" onClick={() => solo(line.key)}>
                    solo
                  </button>
                )}
              </li>
            );
          })}
          {lines.length > LEGEND_LINES && (
            <li>
              <button type="button" class="link" onClick={() => setAll(!all)}>
                {all ? "fewer" : `${lines.length - LEGEND_LINES} more lines`}
              </button>
            </li>
          )}
        </ul>
      )}
    </section>
  );
}

function describe(title: string, lines: CardLine[], format: (y: number) => string): string {
  const each = lines.slice(0, 4).map((line) => `${shortName(line.label, 30)}${line.last == null ? "" : ` now ${format(line.last)}`}`);
  const more = lines.length > 4 ? ` and ${lines.length - 4} more` : "";
  return `${shortName(title)}: ${lines.length === 1 ? "one line" : `${lines.length} lines`}, ${each.join(", ")}${more}.`;
}

function readout(props: Props, cursor: { x: number; values: (number | null)[] } | null): string {
  if (cursor === null) return "";
  const values = props.lines.slice(0, 6).map((line, i) => {
    const value = cursor.values[i];
    return `${shortName(line.label, 30)} ${value == null ? "no value" : props.formatY(value)}`;
  });
  return `${whereText(props, cursor.x)}: ${values.join(", ")}`;
}

function whereText({ xName, readX, formatX }: Props, x: number): string {
  return `${xName} ${(readX ?? formatX)(x)}`;
}
