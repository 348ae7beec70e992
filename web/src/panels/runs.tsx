// The list of runs: choose one, overlay others.
import { useState } from "preact/hooks";
import { formatAgo, formatDuration, formatValue, shortName } from "../format";
import { headline } from "../run";
import type { Store } from "../store";
import type { RunRow } from "../types";
import { Bar, StateChip } from "./parts";

const MOST = 100;

export function RunList({ store, onChosen }: { store: Store; onChosen: () => void }) {
  const [filter, setFilter] = useState("");
  const [all, setAll] = useState(false);
  const runs = [...(store.runs ?? [])].sort((a, b) => Number(b.state === "running") - Number(a.state === "running") || (b.started ?? 0) - (a.started ?? 0));
  const wanted = filter.trim().toLowerCase();
  const found = wanted === "" ? runs : runs.filter((row) => `${row.id} ${row.name ?? ""} ${row.state ?? ""}`.toLowerCase().includes(wanted));
  const shown = all ? found : found.slice(0, MOST);
  const colours = new Map(store.shown.map((run, i) => [run.id, i]));
  return (
    <nav class="runs" aria-label="Runs">
      <div class="runs-head">
        <h2>Runs <span class="count">{runs.length}</span></h2>
        {store.overlaid.length > 0 && (
          <button type="button" class="link" onClick={() => store.overlayNone()}>clear overlay</button>
        )}
      </div>
      {runs.length > 6 && (
        <input type="search" placeholder="Filter runs" aria-label="Filter runs by name or state" value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />
      )}
      <ul>
        {shown.map((row) => (
          <Entry key={row.id} row={row} store={store} colour={store.overlaid.length > 0 ? colours.get(row.id) : undefined} onChosen={onChosen} />
        ))}
      </ul>
      {found.length === 0 && wanted !== "" && <p class="quiet">No run has this in its name.</p>}
      {found.length > shown.length && <button type="button" class="more" onClick={() => setAll(true)}>Show all {found.length} runs</button>}
    </nav>
  );
}

function Entry({ row, store, colour, onChosen }: { row: RunRow; store: Store; colour: number | undefined; onChosen: () => void }) {
  const selected = row.id === store.selected;
  const title = row.name || row.id;
  const progress = row.state !== "running" ? null
    : row.total_steps && row.step !== null ? row.step / row.total_steps
    : row.total_epochs ? ((row.epoch ?? -1) + 1) / row.total_epochs : null;
  return (
    <li class={selected ? "run selected" : "run"}>
      <button type="button" class="run-main" aria-current={selected ? "true" : undefined} title={`${title}\n${row.id}`}
        onClick={() => {
          store.select(row.id);
          onChosen();
        }}>
        <span class="run-title">
          {colour !== undefined && <i class={`swatch line-${colour % 10}`} />}
          <span class="run-name">{shortName(title, 48)}</span>
          <StateChip state={row.state} />
        </span>
        {row.problem !== null ? (
          <span class="run-line">{shortName(row.problem, 120)}</span>
        ) : (
          <>
            <span class="run-line">
              {row.started !== null && formatAgo(row.started)}
              {row.seconds !== null && <span title="Duration"> · {formatDuration(row.seconds)}</span>}
              {row.epoch !== null && <span> · {row.epoch + 1}{row.total_epochs ? `/${row.total_epochs}` : ""} epochs</span>}
            </span>
            <span class="run-best">
              {headline(row, 3).map(({ name, value, best }) => (
                <span key={name} title={`${name}: ${best === null ? "last" : best}`}>
                  {shortName(name, 18)} <b>{formatValue(value)}</b>
                </span>
              ))}
            </span>
          </>
        )}
        {progress !== null && <Bar fraction={progress} label={`Progress of ${shortName(title, 48)}`} />}
      </button>
      {!selected && row.problem === null && (
        <label class="overlay" title="Draw it over the selected run">
          <input type="checkbox" checked={store.overlaid.includes(row.id)} onChange={(event) => store.overlay(row.id, event.currentTarget.checked)}
            aria-label={`Overlay ${shortName(title, 48)}`} />
        </label>
      )}
    </li>
  );
}
