// What happened, newest first, and who asked the training for what.
import { useState } from "preact/hooks";
import { formatAny, formatCount, formatDuration, shortName } from "../format";
import type { Run } from "../run";
import type { EventRow } from "../types";
import { Long } from "./config";
import { Empty, Time } from "./parts";

const MOST = 200;

export function Log({ run }: { run: Run }) {
  const [filter, setFilter] = useState("");
  const [off, setOff] = useState<ReadonlySet<string>>(new Set(["evaluation"]));
  const [most, setMost] = useState(MOST);
  const counts = new Map<string, number>();
  for (const event of run.events) counts.set(event.kind, (counts.get(event.kind) ?? 0) + 1);
  const wanted = filter.trim().toLowerCase();
  const found = run.events.filter((event) => !off.has(event.kind) && (wanted === "" || `${event.kind} ${textOf(event)}`.toLowerCase().includes(wanted)));
  const shown = found.slice(-most).reverse();
  const toggle = (kind: string) => {
    const next = new Set(off);
    if (!next.delete(kind)) next.add(kind);
    setOff(next);
  };
  const audit = run.detail?.audit ?? [];
  return (
    <div class="columns">
      <section class="card" aria-label="Events">
        <div class="toolbar">
          <h2>Events</h2>
          <input type="search" placeholder="Filter events" aria-label="Filter events by text" value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />
          {[...counts].map(([kind, count]) => (
            <button key={kind} type="button" class="toggle" aria-pressed={!off.has(kind)} onClick={() => toggle(kind)} title={off.has(kind) ? "Hidden" : "Shown"}>
              {shortName(kind, 20)} <span class="count">{formatCount(count)}</span>
            </button>
          ))}
        </div>
        {shown.length === 0 ? (
          <Empty title={run.events.length === 0 ? "Nothing to report" : "No event matches"}>
            {run.events.length === 0 && "Warnings, checkpoints and what else happens appear here."}
          </Empty>
        ) : (
          <ol class="events">
            {shown.map((event) => (
              <li key={event.id} class={`event ${severity(event.kind)}`}>
                <Time at={event.time} />
                <span class="kind">{shortName(event.kind, 24)}</span>
                <span class="what"><Long text={textOf(event)} most={400} /></span>
                <span class="quiet where">
                  {event.step !== null && `step ${formatCount(event.step)}`}
                  {event.rank > 0 && ` · rank ${event.rank}`}
                </span>
              </li>
            ))}
          </ol>
        )}
        {found.length > shown.length && <button type="button" class="more" onClick={() => setMost(most + 1000)}>Show more of {formatCount(found.length - shown.length)} older events</button>}
        {run.eventsLeftOut && <p class="quiet">Only the newest events are loaded.</p>}
      </section>
      <section class="card facts" aria-label="Requests">
        <h2>Requests</h2>
        {audit.length === 0 ? <p class="quiet">Nobody asked this training to stop or to save.</p> : (
          <ol class="audit">
            {[...audit].reverse().map((row) => (
              <li key={row.id}>
                <strong>{row.action}</strong> <Time at={row.time} />
                <div class="quiet">{shortName(row.origin, 80)}</div>
                <div>{row.taken !== null ? <>taken after {formatDuration(Math.max(0, row.taken - row.time))}</> : (row.outcome ?? "waiting")}</div>
              </li>
            ))}
          </ol>
        )}
      </section>
    </div>
  );
}

function severity(kind: string): string {
  if (/warn/.test(kind)) return "warn";
  return /error|fail/.test(kind) ? "bad" : "";
}

function textOf(event: EventRow): string {
  const { text, ...rest } = event.data;
  const parts = [];
  if (event.seconds !== null) parts.push(formatDuration(event.seconds));
  if (typeof text === "string") parts.push(text);
  const others = Object.entries(rest).map(([key, value]) => `${key.replaceAll("_", " ")} ${formatAny(value)}`);
  return [...parts, ...others].join(" · ");
}
