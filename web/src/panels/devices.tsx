// A tab for each rank: how fast it is, its part of the batch, how long it waits.
import { useEffect, useMemo, useState } from "preact/hooks";
import { type CardLine, ChartCard } from "../chart/card";
import type { Range } from "../chart/scale";
import { formatDuration, formatPercent, formatShort, formatValue } from "../format";
import type { Run } from "../run";
import type { Store } from "../store";
import { type Columns, columnsOf, type Lane, LANES, sharesOf } from "../timeline/columns";
import type { TimelineData } from "../types";
import { Empty, Stat } from "./parts";
import { Tabs } from "./tabs";

const COLUMNS = 240;
const LIVE_MS = 2000;
const LANE_COLOUR: Record<Lane, number> = { compute: 0, data: 1, evaluation: 4, checkpoint: 5, sync: 2, wait: 3, other: 7 };

export function Devices({ store, run }: { store: Store; run: Run }) {
  const [data, setData] = useState<TimelineData | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [chosen, setChosen] = useState("all");
  const [zoom, setZoom] = useState<Range | null>(null);
  useEffect(() => {
    let gone = false;
    const load = () =>
      store.api.timeline(run.id, COLUMNS * 2).then(
        (found) => {
          if (gone) return;
          setData({ ...found, to: lastEnd(found) });
          setError(null);
        },
        (failure: unknown) => gone || setError(failure instanceof Error ? failure.message : String(failure)),
      );
    void load();
    const live = run.detail?.info.state === "running" ? setInterval(() => void load(), LIVE_MS) : undefined;
    return () => {
      gone = true;
      clearInterval(live);
    };
  }, [run.id, run.generation, run.detail?.info.state]);

  const started = run.detail?.info.started ?? 0;
  const devices = useMemo(() => (data === null ? [] : data.ranks.map((rank) => ({ rank, columns: columnsOf(rank, data.from, data.to, columnCount(data)) }))), [data]);
  if (error !== null) return <p class="notice warn">{error}</p>;
  if (data === null) return <p class="quiet">Loading…</p>;
  if (devices.length === 0) return <Empty title="No device has worked yet">Throughput, batch share and idle time of each rank appear with the first steps.</Empty>;

  const x = Array.from({ length: columnCount(data) }, (_, i) => data.from - started + ((data.to - data.from) * (i + 0.5)) / columnCount(data));
  const shares = sharesByRank(run);
  const several = devices.length > 1;
  const tabs = [...(several ? [{ key: "all", text: "All ranks" }] : []), ...devices.map(({ rank }) => ({ key: String(rank.rank), text: `Rank ${rank.rank}` }))];
  const current = tabs.some((tab) => tab.key === chosen) ? chosen : (tabs[0]?.key ?? "all");
  const picked = current === "all" ? devices : devices.filter(({ rank }) => String(rank.rank) === current);
  const card = { height: 208, log: false, halfLife: 0, zoom, onZoom: setZoom, sync: "devices", xName: "after", formatX: formatDuration, version: 0 };
  const percent = { formatY: (value: number) => formatPercent(value / 100), axisY: (value: number) => `${Math.round(value * 10) / 10} %`, yRange: [0, 100] as [number, number] };
  return (
    <div class="devices">
      <Tabs label="Ranks" tabs={tabs} current={current} onChange={setChosen} panel="device" />
      <div id="panel-device" role="tabpanel" aria-labelledby={`tab-device-${current}`}>
        {current === "all" ? <Comparison data={data} shares={shares} /> : picked.map(({ rank }) => (
          <DeviceStats key={rank.rank} rank={rank} data={data} share={shares.get(rank.rank)?.at(-1)?.[1]} />
        ))}
        <div class="grid">
          <ChartCard {...card} title="Throughput" subtitle="steps per second" formatY={(value) => `${formatValue(Number(value.toPrecision(3)))}/s`} axisY={formatShort} yRange={[0, null]}
            lines={picked.map(({ rank, columns }) => line(`rank ${rank.rank}`, rank.rank, x, throughput(columns)))} />
          {current === "all" ? (
            <ChartCard {...card} {...percent} title="Idle and waiting" subtitle="part of the time in which a rank does not compute"
              lines={picked.map(({ rank, columns }) => line(`rank ${rank.rank}`, rank.rank, x, notComputing(columns)))} />
          ) : (
            picked.map(({ rank, columns }) => (
              <ChartCard key={rank.rank} {...card} {...percent} title="Use of time" subtitle="part of each moment"
                lines={[
                  ...LANES.filter((lane) => columns.busy[lane].some((seconds) => seconds > 0)).map((lane) => line(lane, LANE_COLOUR[lane], x, part(columns, lane))),
                  line("idle", 9, x, idle(columns)),
                ]} />
            ))
          )}
          {shares.size > 0 && (
            <ChartCard {...card} {...percent} yRange={[0, null]} title="Batch share" subtitle="part of each batch that a rank gets"
              lines={picked.flatMap(({ rank }) => {
                const found = shares.get(rank.rank);
                if (found === undefined) return [];
                // A share holds until the next: drawn as steps.
                const ends = [...found.slice(1).map(([time]) => time), data.to];
                const xs = found.flatMap(([time], i) => [time - started, (ends[i] ?? time) - started]);
                return [line(`rank ${rank.rank}`, rank.rank, xs, found.flatMap(([, value]) => [value * 100, value * 100]))];
              })} />
          )}
        </div>
      </div>
    </div>
  );
}

/** All ranks in one table: who is slow, who waits. */
function Comparison({ data, shares }: { data: TimelineData; shares: Map<number, [number, number][]> }) {
  return (
    <div class="card table" tabIndex={0} role="region" aria-label="Ranks over the whole run">
      <table>
        <thead>
          <tr>
            <th scope="col">Rank</th>
            <th scope="col">Throughput</th>
            {shares.size > 0 && <th scope="col">Batch share</th>}
            <th scope="col">Computing</th>
            <th scope="col" title="Waiting for the next batch">Data</th>
            <th scope="col" title="Exchanging with other ranks, or waiting for them">Other ranks</th>
            <th scope="col">Idle</th>
          </tr>
        </thead>
        <tbody>
          {data.ranks.map((rank) => {
            const found = sharesOf(rank, data.from, data.to);
            const share = shares.get(rank.rank)?.at(-1)?.[1];
            return (
              <tr key={rank.rank}>
                <th scope="row"><i class={`swatch line-${rank.rank % 10}`} /> {rank.rank}</th>
                <td>{formatShort(Number(found.stepsPerSecond.toPrecision(3)))} steps/s</td>
                {shares.size > 0 && <td>{share === undefined ? "–" : formatPercent(share)}</td>}
                <td>{formatPercent(found.busy.compute)}</td>
                <td>{formatPercent(found.busy.data)}</td>
                <td>{formatPercent(found.busy.sync + found.busy.wait)}</td>
                <td>{formatPercent(found.idle)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

function DeviceStats({ rank, data, share }: { rank: TimelineData["ranks"][number]; data: TimelineData; share: number | undefined }) {
  const found = sharesOf(rank, data.from, data.to);
  return (
    <section class="card" aria-label={`Rank ${rank.rank}`}>
      <dl class="stats">
        <Stat name="Throughput" value={`${formatShort(Number(found.stepsPerSecond.toPrecision(3)))} steps/s`} title="Over the whole run" />
        {share !== undefined && <Stat name="Batch share" value={formatPercent(share)} />}
        <Stat name="Computing" value={formatPercent(found.busy.compute)} />
        <Stat name="Data" value={formatPercent(found.busy.data)} title="Waiting for the next batch" />
        {found.busy.evaluation > 0 && <Stat name="Evaluation" value={formatPercent(found.busy.evaluation)} />}
        {found.busy.checkpoint > 0 && <Stat name="Checkpoints" value={formatPercent(found.busy.checkpoint)} />}
        {found.busy.sync + found.busy.wait > 0 && <Stat name="Other ranks" value={formatPercent(found.busy.sync + found.busy.wait)} title="Exchanging with them, or waiting for them" />}
        <Stat name="Idle" value={formatPercent(found.idle)} />
      </dl>
    </section>
  );
}

/** Where the last span ends: after it nothing is known, which is not idleness. */
function lastEnd(data: TimelineData): number {
  const ends = data.ranks.flatMap((rank) => rank.lanes.map((lane) => lane.spans.at(-1))).map((span) => (span === undefined ? 0 : span[0] + span[1]));
  return Math.max(data.from + 0.001, ...ends);
}

function columnCount(data: TimelineData): number {
  return Math.max(10, Math.min(COLUMNS, Math.round((data.to - data.from) / 0.25))); // the recorder writes four times a second
}

function line(label: string, color: number, x: number[], y: (number | null)[]): CardLine {
  return { key: label, label, color, x, y, gaps: [], last: y.findLast((value) => value !== null) ?? null };
}

function throughput({ steps, seconds }: Columns): number[] {
  return Array.from(steps, (count) => count / seconds);
}

function part({ busy, seconds }: Columns, lane: Lane): number[] {
  return Array.from(busy[lane], (time) => Math.min(100, (100 * time) / seconds));
}

function idle(columns: Columns): number[] {
  return Array.from(columns.steps, (_, i) => {
    const used = LANES.reduce((sum, lane) => sum + (columns.busy[lane][i] ?? 0), 0);
    return Math.max(0, 100 * (1 - used / columns.seconds));
  });
}

function notComputing({ busy, seconds }: Columns): number[] {
  return Array.from(busy.compute, (time, i) => Math.max(0, 100 * (1 - (time + (busy.evaluation[i] ?? 0)) / seconds)));
}

function sharesByRank(run: Run): Map<number, [number, number][]> {
  const found = new Map<number, [number, number][]>();
  for (const event of run.events) {
    const share = event.kind === "share" ? event.data["share"] : undefined;
    if (share === null || typeof share !== "object") continue;
    for (const [rank, value] of Object.entries(share)) {
      const list = found.get(Number(rank)) ?? [];
      list.push([event.time, Number(value)]);
      found.set(Number(rank), list);
    }
  }
  return found;
}
