// Numbers, durations and names as people read them.
import type { Value } from "./types";

export function toNumber(value: Value | null | undefined): number {
  if (typeof value === "number") return value;
  return value === "inf" ? Infinity : value === "-inf" ? -Infinity : NaN;
}

/** 1.5264, 0.91, 1.234e-5, 123,456, NaN, ∞ */
export function formatValue(value: Value | null | undefined): string {
  if (value === null || value === undefined) return "–";
  const number = toNumber(value);
  if (Number.isNaN(number)) return "NaN";
  if (!Number.isFinite(number)) return number > 0 ? "∞" : "−∞";
  const size = Math.abs(number);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return number.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
  if (size >= 1e4) return formatCount(number);
  return String(Number(number.toPrecision(size >= 1 ? 5 : 4)));
}

/** 12,345 */
export function formatCount(count: number): string {
  return Math.round(count).toLocaleString("en-US");
}

/** 1.2k, 3M: for axes */
export function formatShort(value: number): string {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e15 || size < 1e-3) return value.toExponential(1).replace(".0e", "e").replace("e+", "e");
  for (const [unit, sign] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]] as const)
    if (size >= unit) return `${Number((value / unit).toPrecision(4))}${sign}`;
  return String(Number(value.toPrecision(5)));
}

/** 450 µs, 49 ms, 4.8 s, 48 s, 3 m 12 s, 2 h 05 m, 3 d 04 h */
export function formatDuration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds) || seconds < 0) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 0.00095) return `${Number((seconds * 1e6).toPrecision(3))} µs`;
  if (seconds < 0.0095) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 0.9995) return `${(seconds * 1000).toFixed(0)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const two = (n: number) => String(n).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} m ${two(whole % 60)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} m`;
  const hours = Math.round(seconds / 3600);
  return `${Math.floor(hours / 24)} d ${two(hours % 24)} h`;
}

/** 2.1 GB (2**30 bytes, as memory is sold) */
export function formatBytes(bytes: number): string {
  if (bytes === 0) return "0";
  const [unit, sign] = bytes >= 2 ** 30 ? [2 ** 30, "GB"] : bytes >= 2 ** 20 ? [2 ** 20, "MB"] : [2 ** 10, "kB"];
  const size = bytes / unit;
  return `${size < 9.95 ? size.toFixed(1) : size.toFixed(0)} ${sign}`;
}

export function formatPercent(fraction: number): string {
  if (!Number.isFinite(fraction)) return "–";
  const percent = fraction * 100;
  return `${percent !== 0 && Math.abs(percent) < 9.95 ? percent.toFixed(1) : percent.toFixed(0)} %`;
}

/** 14:03:07, or with the date where it is not today */
export function formatTime(time: number): string {
  const date = new Date(time * 1000);
  const clock = date.toLocaleTimeString("en-GB");
  return date.toDateString() === new Date().toDateString()
    ? clock
    : `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" })}, ${clock}`;
}

export function formatAgo(time: number, now: number = Date.now() / 1000): string {
  const seconds = Math.max(0, now - time);
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 24 * 3600) return `${Math.floor(seconds / 3600)} h ago`;
  const days = Math.floor(seconds / 86400);
  return days === 1 ? "yesterday" : days < 30 ? `${days} days ago` : formatTime(time);
}

/** On one line and not endless; the whole name belongs into a tooltip. */
export function shortName(name: string, longest = 60): string {
  const line = name.replace(/\s+/g, " ");
  return line.length > longest ? `${line.slice(0, longest - 12)}…${line.slice(-10)}` : line;
}

/** Whether less of it is better, as its name says: null where it says nothing. */
export function lowerIsBetter(name: string): boolean | null {
  if (/loss|err|perplexity|ppl|mae|mse|nll|cost|wer|cer|fid|regret|divergence|seconds|time/i.test(name)) return true;
  if (/acc|f1|auc|precision|recall|score|bleu|rouge|iou|dice|psnr|ssim|reward|return|hit|map|ndcg|r2/i.test(name)) return false;
  return null;
}

/** A configuration value or an event's datum as text. */
export function formatAny(value: unknown): string {
  if (typeof value === "string") return value;
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : formatValue(value);
  if (value !== null && typeof value === "object") {
    const float = (value as Record<string, unknown>)["$float"];
    if (typeof float === "string") return float;
    if (Array.isArray(value)) return `[${value.map(formatAny).join(", ")}]`;
    return Object.entries(value)
      .map(([key, item]) => `${key}: ${formatAny(item)}`)
      .join(", ");
  }
  return value === null || value === undefined ? "–" : String(value);
}
