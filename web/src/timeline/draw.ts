// The timeline's canvas: a strip for each rank, in which the height of a colour is its part of the time.
import { formatDuration } from "../format";
import type { Mark, TimelineData } from "../types";
import { columnsOf, type Lane, LANES, timeTicks } from "./columns";

export const LEFT = 64;
export const TOP = 46;
export const STRIP = 40;
export const GAP = 14;
const LABEL_PX = 34;
const SEPARATE_PX = 5;

export interface View {
  from: number;
  to: number;
}

export interface Colours {
  lanes: Record<Lane, string>;
  text: string;
  quiet: string;
  grid: string;
  strip: string;
  mark: string;
  warn: string;
  onLane: string;
}

export function readColours(): Colours {
  const css = getComputedStyle(document.documentElement);
  const get = (name: string) => css.getPropertyValue(name).trim();
  return {
    lanes: Object.fromEntries(LANES.map((lane) => [lane, get(`--lane-${lane}`)])) as Record<Lane, string>,
    text: get("--text"),
    quiet: get("--text-2"),
    grid: get("--grid"),
    strip: get("--surface-2"),
    mark: get("--accent"),
    warn: get("--warn"),
    onLane: get("--on-lane"),
  };
}

export function heightOf(ranks: number): number {
  return TOP + Math.max(1, ranks) * (STRIP + GAP);
}

export function draw(canvas: HTMLCanvasElement, data: TimelineData, view: View, started: number, width: number, selected: Mark | null): void {
  const scale = devicePixelRatio;
  const height = heightOf(data.ranks.length);
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const ctx = canvas.getContext("2d");
  if (ctx === null) return;
  const colours = readColours();
  ctx.scale(scale, scale);
  ctx.font = '11px "Inter Variable", system-ui, sans-serif';
  ctx.textBaseline = "middle";
  const plotWidth = width - LEFT;
  const toX = (time: number) => LEFT + ((time - view.from) / (view.to - view.from)) * plotWidth;

  ctx.strokeStyle = colours.grid;
  ctx.lineWidth = 1;
  ctx.textAlign = "center";
  for (const tick of timeTicks(view.from - started, view.to - started, plotWidth / 90)) {
    const x = Math.round(toX(tick + started)) + 0.5;
    if (x < LEFT) continue;
    ctx.beginPath();
    ctx.moveTo(x, 20);
    ctx.lineTo(x, height - GAP);
    ctx.stroke();
    ctx.fillStyle = colours.quiet;
    const text = tickText(tick, view.to - view.from);
    const half = ctx.measureText(text).width / 2;
    ctx.fillText(text, Math.min(width - half - 2, Math.max(LEFT + half, x)), 10);
  }

  data.ranks.forEach((rank, row) => {
    const top = TOP + row * (STRIP + GAP);
    ctx.fillStyle = colours.text;
    ctx.textAlign = "left";
    ctx.fillText(`Rank ${rank.rank}`, 2, top + STRIP / 2);
    ctx.fillStyle = colours.strip;
    ctx.fillRect(LEFT, top, plotWidth, STRIP);
    drawStrip(ctx, columnsOf(rank, view.from, view.to, Math.round(plotWidth * scale)), colours, top, scale);
    drawSteps(ctx, rank, view, colours, top, toX, width);
  });

  for (const mark of data.marks) {
    if (mark.time < view.from || mark.time > view.to) continue;
    drawMark(ctx, mark, toX(mark.time), height, colours, mark === selected);
  }
}

function drawStrip(ctx: CanvasRenderingContext2D, columns: ReturnType<typeof columnsOf>, colours: Colours, top: number, scale: number): void {
  const { busy, seconds } = columns;
  const count = busy.compute.length;
  for (let column = 0; column < count; column++) {
    let sum = 0;
    for (const lane of LANES) sum += busy[lane][column] ?? 0;
    if (sum === 0) continue;
    const whole = Math.max(sum, seconds); // spans that overlap share the height
    let bottom = top + STRIP;
    for (const lane of LANES) {
      const part = ((busy[lane][column] ?? 0) / whole) * STRIP;
      if (part === 0) continue;
      ctx.fillStyle = colours.lanes[lane];
      ctx.fillRect(LEFT + column / scale, bottom - part, 1 / scale, part);
      bottom -= part;
    }
  }
}

/** Where there is room, edges and numbers of single steps. */
function drawSteps(
  ctx: CanvasRenderingContext2D,
  rank: TimelineData["ranks"][number],
  view: View,
  colours: Colours,
  top: number,
  toX: (time: number) => number,
  width: number,
): void {
  ctx.textAlign = "center";
  for (const { lane, spans } of rank.lanes)
    for (const [start, seconds, step, count] of spans) {
      if (count !== 1 || start + seconds < view.from || start > view.to) continue;
      const left = Math.max(LEFT, toX(start));
      const right = Math.min(width, toX(start + seconds));
      if (right - left < SEPARATE_PX) continue;
      ctx.fillStyle = colours.strip;
      ctx.fillRect(right - 0.5, top, 1, STRIP);
      if (lane !== "compute" || step === null || right - left < LABEL_PX) continue;
      ctx.fillStyle = colours.onLane;
      const text = right - left > 64 ? `step ${step}` : String(step);
      if (ctx.measureText(text).width < right - left - 6) ctx.fillText(text, (left + right) / 2, top + STRIP / 2);
    }
}

function drawMark(ctx: CanvasRenderingContext2D, mark: Mark, x: number, height: number, colours: Colours, selected: boolean): void {
  ctx.fillStyle = ctx.strokeStyle = mark.kind === "warning" ? colours.warn : colours.mark;
  ctx.globalAlpha = selected ? 1 : 0.75;
  ctx.setLineDash([3, 3]);
  ctx.lineWidth = selected ? 2 : 1;
  ctx.beginPath();
  ctx.moveTo(x, 34);
  ctx.lineTo(x, height - GAP);
  ctx.stroke();
  ctx.setLineDash([]);
  ctx.beginPath();
  ctx.moveTo(x - 5, 24);
  ctx.lineTo(x + 5, 24);
  ctx.lineTo(x, 33);
  ctx.closePath();
  ctx.fill();
  ctx.globalAlpha = 1;
}

/** Enough digits that neighbouring ticks differ. */
function tickText(seconds: number, span: number): string {
  if (span > 20) return formatDuration(Math.max(0, Math.round(seconds)));
  const digits = Math.min(6, Math.max(0, Math.ceil(1 - Math.log10(span / 8))));
  return `${seconds.toFixed(digits)} s`;
}
