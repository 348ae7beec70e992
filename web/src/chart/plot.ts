// One chart of lines on a canvas (uPlot): gaps marked, lone points drawn, labels never clipped.
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { formatShort } from "../format";
import { join, type Table } from "./join";
import { logTicks, type Range, rangeOf, symlogTicks } from "./scale";
import { smooth } from "./smooth";

export interface Line {
  key: string;
  label: string;
  /** Index into the palette. */
  color: number;
  x: number[];
  y: (number | null)[];
  /** Where values are not finite. */
  gaps: number[];
  /** Few points, each of them meant to be seen. */
  dotted?: boolean;
  /** Filled down to zero. */
  filled?: boolean;
}

export interface PlotOptions {
  height: number;
  log: boolean;
  /** Half-life in units of x; 0: none. */
  halfLife: number;
  zoom: Range | null;
  /** Charts with the same one share their cursor. */
  sync: string;
  formatX: (x: number) => string;
  formatY: (y: number) => string;
  /** Labels of the axis, where they are not plain numbers. */
  axisY?: (y: number) => string;
  /** Kept in sight whatever the data. */
  yRange?: [number | null, number | null];
  /** Ticks at powers of two, as memory is counted. */
  binary?: boolean;
}

export interface PlotEvents {
  onZoom: (zoom: Range | null) => void;
  /** x under the cursor and each line's value there; null when the cursor left. */
  onCursor: (x: number | null, values: (number | null)[]) => void;
}

const PALETTE = 10;
const FONT = '11px "Inter Variable", system-ui, sans-serif';

export class Plot {
  private chart: uPlot | null = null;
  private lines: Line[] = [];
  private hidden: ReadonlySet<string> = new Set();
  private shape = "";
  private threshold = 1;

  constructor(
    private readonly box: HTMLElement,
    private options: PlotOptions,
    private readonly events: PlotEvents,
  ) {}

  get drawn(): boolean {
    return this.chart !== null;
  }

  /** Draws; makes a new chart only when lines came or went. */
  set(lines: Line[], hidden: ReadonlySet<string>, options: PlotOptions): void {
    this.lines = lines;
    this.hidden = hidden;
    this.options = options;
    const shape = JSON.stringify([lines.map((line) => [line.key, line.color, line.dotted, line.filled]), this.mode(), options.height, options.halfLife > 0]);
    const data = this.data();
    if (this.chart === null || shape !== this.shape) {
      this.shape = shape;
      this.build(data);
    } else {
      this.chart.batch(() => {
        this.applyVisibility();
        this.chart?.setData(data, true);
      });
    }
  }

  /** New colours after a change between light and dark. */
  restyle(): void {
    if (this.chart !== null) this.build(this.data());
  }

  resize(): void {
    const width = this.box.clientWidth;
    if (this.chart !== null && width > 0 && width !== this.chart.width) this.chart.setSize({ width, height: this.options.height });
  }

  destroy(): void {
    this.chart?.destroy();
    this.chart = null;
  }

  /** Moves the cursor by `steps` points, for the keyboard. */
  moveCursor(steps: number): void {
    const chart = this.chart;
    const x = chart?.data[0];
    if (chart == null || x === undefined || x.length === 0) return;
    const now = chart.cursor.idx ?? (steps > 0 ? -1 : x.length);
    const next = x[Math.min(x.length - 1, Math.max(0, now + steps))] ?? 0;
    chart.setCursor({ left: chart.valToPos(next, "x"), top: chart.over.clientHeight / 2 });
  }

  /** Zooms by `factor` around the cursor, or the middle. */
  zoomBy(factor: number): void {
    const { min, max } = this.chart?.scales["x"] ?? {};
    if (this.chart === null || min == null || max == null) return;
    const left = this.chart.cursor.left ?? -1;
    const around = left >= 0 ? this.chart.posToVal(left, "x") : (min + max) / 2;
    this.events.onZoom({ min: around - (around - min) * factor, max: around + (max - around) * factor });
  }

  /** What is drawn now. */
  inspect(): { x: [number, number] | null; y: [number, number] | null; yTicks: string[] } {
    const range = (key: string): [number, number] | null => {
      const { min, max } = this.chart?.scales[key] ?? {};
      return min == null || max == null ? null : [min, max];
    };
    const y = this.chart?.axes[1] as unknown as { _values?: string[] } | undefined;
    return { x: range("x"), y: range("y"), yTicks: y?._values ?? [] };
  }

  private mode(): "linear" | "log" | "symlog" {
    if (!this.options.log) return "linear";
    return this.lines.some((line) => line.y.some((value) => value !== null && value <= 0)) ? "symlog" : "log";
  }

  private data(): uPlot.AlignedData {
    const tables = this.lines.map((line) => {
      const columns: (number | null)[][] = [line.y];
      if (this.options.halfLife > 0) columns.push(line.dotted ? line.y.map(() => null) : smooth(line.x, line.y, this.options.halfLife));
      return [line.x, ...columns] as Table;
    });
    if (this.mode() === "symlog") {
      const sizes = this.lines.flatMap((line) => line.y.filter((v): v is number => v !== null && v !== 0).map(Math.abs));
      const largest = sizes.reduce((most, size) => Math.max(most, size), 0) || 1;
      this.threshold = 10 ** Math.floor(Math.log10(largest) - 3);
    }
    return join(tables);
  }

  private get perLine(): number {
    return this.options.halfLife > 0 ? 2 : 1;
  }

  private applyVisibility(): void {
    this.lines.forEach((line, i) => {
      for (let k = 0; k < this.perLine; k++) {
        const series = this.chart?.series[1 + i * this.perLine + k];
        const show = !this.hidden.has(line.key);
        if (series !== undefined && series.show !== show) this.chart?.setSeries(1 + i * this.perLine + k, { show });
      }
    });
  }

  private build(data: uPlot.AlignedData): void {
    this.chart?.destroy();
    const css = getComputedStyle(document.documentElement);
    const colour = (name: string) => css.getPropertyValue(name).trim();
    const line = (i: number) => colour(`--line-${(this.lines[i]?.color ?? 0) % PALETTE}`);
    const axis: uPlot.Axis = {
      stroke: colour("--text-2"),
      font: FONT,
      grid: { stroke: colour("--grid"), width: 1 },
      ticks: { stroke: colour("--grid"), width: 1, size: 4 },
      gap: 6,
    };
    const mode = this.mode();
    this.chart = new uPlot(
      {
        width: Math.max(80, this.box.clientWidth),
        height: this.options.height,
        padding: [10, 22, 0, 4],
        legend: { show: false },
        scales: {
          x: { time: false, range: (_, min, max) => this.xRange(min, max) },
          y: {
            distr: mode === "log" ? 3 : mode === "symlog" ? 4 : 1,
            asinh: this.threshold,
            range: (_, min, max) => this.yRange(min, max),
          },
        },
        axes: [
          { ...axis, size: 30, space: 64, values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : this.options.formatX(tick))) },
          {
            ...axis,
            space: 34,
            size: (chart, values, index, cycle) => labelWidth(chart, values, index, cycle),
            values: (_, ticks, __, ___, step) => ticks.map((tick) => (tick == null ? "" : this.labelY(tick, step))),
            ...(mode === "linear" ? {} : { splits: (chart) => this.splits(chart, mode), filter: (_, ticks) => ticks }),
            ...(this.options.binary ? { incrs: binarySteps() } : {}),
          },
        ],
        series: [
          {},
          ...this.lines.flatMap((described, i) => {
            const show = !this.hidden.has(described.key);
            const base: uPlot.Series = {
              show,
              stroke: line(i),
              width: 1.75,
              spanGaps: false,
              points: described.dotted
                ? { show: true, size: 6, fill: line(i) }
                : { show: true, size: 5, fill: line(i), filter: (chart, index) => lonePoints(chart.data[index] ?? []) },
              ...(described.color >= PALETTE ? { dash: [6, 4] } : {}),
              ...(described.filled ? { fill: `color-mix(in srgb, ${line(i)} 14%, transparent)` } : {}),
            };
            if (this.options.halfLife <= 0) return [base];
            const { points, ...plain } = base;
            const faint: uPlot.Series = described.dotted ? base : { ...base, alpha: 0.28, width: 1.25 };
            return [faint, { ...plain, points: { ...points, show: false }, width: 2 }];
          }),
        ],
        cursor: {
          y: false,
          drag: { x: true, y: false, setScale: false },
          sync: { key: this.options.sync, scales: ["x", null], filters: { pub: isMove, sub: isMove } },
          dataIdx: (chart, series, index) => nearest(chart.data[series] ?? [], index),
          points: { size: 7, width: 2 },
          bind: { dblclick: () => () => { this.events.onZoom(null); return null; } },
        },
        hooks: {
          setSelect: [(chart) => this.selected(chart)],
          setCursor: [(chart) => this.moved(chart)],
          draw: [(chart) => this.drawGaps(chart, line)],
        },
      },
      data,
      this.box,
    );
  }

  private xRange(min: number | null, max: number | null): uPlot.Range.MinMax {
    if (this.options.zoom !== null) return [this.options.zoom.min, this.options.zoom.max];
    if (min === null || max === null) return [0, 1];
    return min === max ? [min - 1, max + 1] : [min, max];
  }

  private yRange(low: number | null, high: number | null): uPlot.Range.MinMax {
    const [floor = null, ceiling = null] = this.options.yRange ?? [];
    if (low === null || high === null || !Number.isFinite(low) || !Number.isFinite(high)) {
      return this.mode() === "log" ? [1, 10] : [floor ?? 0, ceiling ?? 1];
    }
    if (this.mode() === "log") return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.05, high * (high / low) ** 0.05];
    const room = low === high ? Math.abs(low) * 0.1 || 1 : (high - low) * 0.06;
    const [min, max] = [low - room, high + room];
    // A quantity that is never negative is not given an axis that is.
    return [floor ?? (low >= 0 && min < 0 ? 0 : min), Math.max(ceiling ?? max, ceiling === null ? max : high)];
  }

  private labelY(tick: number, step: number): string {
    if (this.options.axisY !== undefined) return this.options.axisY(tick);
    return this.mode() === "linear" ? tickLabel(tick, step) : formatShort(tick);
  }

  private splits(chart: uPlot, mode: "log" | "symlog"): number[] {
    const { min, max } = chart.scales["y"] ?? {};
    if (min == null || max == null) return [];
    const most = Math.max(2, Math.floor(this.options.height / 36));
    return mode === "log" ? logTicks(min, max, most) : symlogTicks(min, max, this.threshold);
  }

  private selected(chart: uPlot): void {
    const { left, width } = chart.select;
    if (width < 6) return;
    const zoom = { min: chart.posToVal(left, "x"), max: chart.posToVal(left + width, "x") };
    chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.events.onZoom(zoom);
  }

  private moved(chart: uPlot): void {
    const index = chart.cursor.idx;
    if (index == null || (chart.cursor.left ?? -1) < 0) return this.events.onCursor(null, []);
    const values = this.lines.map((line, i) => {
      if (this.hidden.has(line.key)) return null;
      const series = 1 + i * this.perLine + (this.perLine > 1 && !line.dotted ? 1 : 0);
      const found = chart.cursor.idxs?.[series] ?? index;
      return chart.data[series]?.[found] ?? null;
    });
    this.events.onCursor(chart.data[0][index] ?? null, values);
  }

  /** A small cross on the bottom edge for every value that is not finite. */
  private drawGaps(chart: uPlot, colour: (i: number) => string): void {
    const { ctx, bbox } = chart;
    const size = 3.5 * devicePixelRatio;
    ctx.save();
    ctx.lineWidth = 1.5 * devicePixelRatio;
    this.lines.forEach((line, i) => {
      if (this.hidden.has(line.key)) return;
      ctx.strokeStyle = colour(i);
      const y = bbox.top + bbox.height - size * (2 + 2.4 * (i % 4));
      ctx.beginPath();
      for (const gap of line.gaps) {
        const x = chart.valToPos(gap, "x", true);
        if (x < bbox.left || x > bbox.left + bbox.width) continue;
        ctx.moveTo(x - size, y - size);
        ctx.lineTo(x + size, y + size);
        ctx.moveTo(x + size, y - size);
        ctx.lineTo(x - size, y + size);
      }
      ctx.stroke();
    });
    ctx.restore();
  }
}

/** The range of the values that are drawn. */
export function drawnRange(line: Line): Range | null {
  return rangeOf(line.y);
}

function isMove(type: string): boolean {
  return type === "mousemove" || type === "mouseleave";
}

/** Points with no neighbour to draw a line to. `undefined` is another line's x; null is a gap. */
export function lonePoints(y: ArrayLike<number | null | undefined>): number[] {
  const found: number[] = [];
  let beforeIsGap = true;
  let candidate = -1;
  for (let i = 0; i < y.length; i++) {
    const value = y[i];
    if (value === undefined) continue;
    if (value === null) {
      if (candidate >= 0) found.push(candidate);
      candidate = -1;
      beforeIsGap = true;
    } else {
      candidate = beforeIsGap ? i : -1;
      beforeIsGap = false;
    }
  }
  if (candidate >= 0) found.push(candidate);
  return found;
}

/** The nearest index at which a line has a value (or a gap). */
function nearest(y: ArrayLike<number | null | undefined>, index: number): number {
  if (y[index] !== undefined) return index;
  for (let away = 1; away < y.length; away++) {
    if (y[index - away] != null) return index - away;
    if (y[index + away] != null) return index + away;
  }
  return index;
}

function labelWidth(chart: uPlot, values: string[] | null, index: number, cycle: number): number {
  const axis = chart.axes[index] as uPlot.Axis & { _size?: number; font?: string[] };
  if (cycle > 1 && axis._size !== undefined) return axis._size; // or it would swing between two sizes
  const longest = (values ?? []).reduce((most, text) => (text.length > most.length ? text : most), "");
  chart.ctx.save();
  chart.ctx.font = axis.font?.[0] ?? FONT;
  const width = chart.ctx.measureText(longest).width / devicePixelRatio;
  chart.ctx.restore();
  return Math.ceil(width) + 16;
}

/** As many digits as neighbouring ticks need to differ. */
export function tickLabel(tick: number, step: number): string {
  if (tick === 0) return "0";
  const size = Math.abs(tick);
  if (size >= 1e15 || size < 1e-4) return formatShort(tick);
  const [unit, sign] = size >= 1e9 ? [1e9, "G"] : size >= 1e6 ? [1e6, "M"] : size >= 1e4 ? [1e3, "k"] : [1, ""];
  const part = step / unit;
  let digits = 0;
  while (digits < 12 && Math.abs(part * 10 ** digits - Math.round(part * 10 ** digits)) > 1e-6 * part * 10 ** digits) digits++;
  const text = (tick / unit).toFixed(digits);
  return (digits > 0 && sign !== "" ? text.replace(/\.?0+$/, "") : text) + sign;
}

function binarySteps(): number[] {
  const steps: number[] = [];
  for (let power = 0; power < 50; power++) steps.push(2 ** power);
  return steps;
}
