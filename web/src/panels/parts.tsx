// Small pieces that several panels share.
import type { ComponentChildren } from "preact";
import { formatTime } from "../format";
import type { RunState } from "../types";

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children && <p>{children}</p>}
    </div>
  );
}

const STATES: Record<RunState, string> = {
  running: "It sends a sign of life every second",
  finished: "It came to its end",
  stopped: "It was stopped before its end",
  failed: "An error ended it",
  stale: "It gave no sign of life for 15 s, or its process is gone",
};

export function StateChip({ state }: { state: RunState | null }) {
  if (state === null) return <span class="chip unreadable" title="Its store cannot be read">unreadable</span>;
  return (
    <span class={`chip ${state}`} title={STATES[state]}>
      <i class="dot" />
      {state}
    </span>
  );
}

export function Time({ at }: { at: number | null }) {
  if (at === null) return <>–</>;
  return <time dateTime={new Date(at * 1000).toISOString()}>{formatTime(at)}</time>;
}

export function Stat({ name, value, title, wide }: { name: string; value: string; title?: string; wide?: boolean }) {
  return (
    <div class={wide ? "stat wide" : "stat"} title={title}>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

export function Bar({ fraction, label }: { fraction: number; label: string }) {
  const percent = Math.round(fraction * 1000) / 10;
  return (
    <div class="bar" role="progressbar" aria-label={label} aria-valuenow={percent} aria-valuemin={0} aria-valuemax={100}>
      <div style={{ width: `${percent}%` }} />
    </div>
  );
}

