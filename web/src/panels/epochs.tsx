// One row for each epoch; the best value of each metric is marked.
import { useState } from "preact/hooks";
import { formatCount, formatDuration, formatValue, lowerIsBetter, shortName, toNumber } from "../format";
import type { Run } from "../run";
import type { EpochRow } from "../types";
import { Empty } from "./parts";

const MOST = 200;

interface Column {
  key: string;
  title: string;
  value: (epoch: EpochRow) => number;
  text: (epoch: EpochRow) => string;
  /** Its best value and whether that is the lowest. */
  best?: number;
  lowest?: boolean;
}

export function Epochs({ run }: { run: Run }) {
  const [order, setOrder] = useState<{ key: string; up: boolean }>({ key: "epoch", up: false });
  const [most, setMost] = useState(MOST);
  if (run.epochs.length === 0) return <Empty title="No epoch is complete yet">Each one gets a row here, with its means.</Empty>;
  const columns = columnsOf(run);
  const by = columns.find((column) => column.key === order.key) ?? columns[0];
  const sign = order.up ? 1 : -1;
  const rows = [...run.epochs].sort((a, b) => compare(by?.value(a) ?? 0, by?.value(b) ?? 0, sign));
  return (
    <div class="card table" tabIndex={0} role="region" aria-label="Epochs">
      <table>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.key} scope="col" aria-sort={order.key !== column.key ? "none" : order.up ? "ascending" : "descending"}>
                <button type="button" title={`${column.title}\nSort`} onClick={() => setOrder({ key: column.key, up: order.key === column.key ? !order.up : column.lowest === true })}>
                  {shortName(column.title, 28)}
                  <i class={order.key !== column.key ? "sort" : order.up ? "sort up" : "sort down"} />
                </button>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, most).map((epoch) => (
            <tr key={epoch.id}>
              {columns.map((column, i) => {
                const best = column.best !== undefined && column.value(epoch) === column.best;
                const text = column.text(epoch);
                return i === 0 ? <th key={column.key} scope="row">{text}</th> : (
                  <td key={column.key} class={best ? "best" : undefined} title={best ? `The ${column.lowest ? "lowest" : "highest"} ${shortName(column.title)}` : undefined}>
                    {text}{best && <span class="visually-hidden"> best</span>}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > most && <button type="button" class="more" onClick={() => setMost(most + 1000)}>Show more of {formatCount(rows.length - most)} further epochs</button>}
    </div>
  );
}

function columnsOf(run: Run): Column[] {
  const names = new Set<string>();
  for (const epoch of [run.epochs[0], ...run.epochs.slice(-20)]) for (const name of Object.keys(epoch?.metrics ?? {})) names.add(name);
  return [
    { key: "epoch", title: "Epoch", value: (e) => e.number, text: (e) => formatCount(e.number + 1) },
    { key: "step", title: "Step", value: (e) => e.step ?? NaN, text: (e) => (e.step === null ? "–" : formatCount(e.step)) },
    { key: "seconds", title: "Duration", value: (e) => e.seconds ?? NaN, text: (e) => formatDuration(e.seconds) },
    ...[...names].map((name): Column => {
      const column: Column = {
        key: `metric ${name}`,
        title: name,
        value: (e) => toNumber(e.metrics[name]),
        text: (e) => formatValue(e.metrics[name]),
      };
      const lowest = lowerIsBetter(name);
      const values = run.epochs.map(column.value).filter(Number.isFinite);
      if (lowest === null || values.length < 2) return column;
      const best = values.reduce((a, b) => ((a < b) === lowest ? a : b));
      return { ...column, best, lowest };
    }),
  ];
}

/** What is not a number comes last, whatever the order. */
function compare(a: number, b: number, sign: number): number {
  if (Number.isNaN(a) || Number.isNaN(b)) return Number(Number.isNaN(a)) - Number(Number.isNaN(b));
  return a === b ? 0 : a < b ? -sign : sign;
}
