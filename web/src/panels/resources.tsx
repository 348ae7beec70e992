// What the process and its machine used over time.
import { useEffect, useMemo, useReducer, useState } from "preact/hooks";
import { type CardLine, ChartCard } from "../chart/card";
import type { Range } from "../chart/scale";
import { formatBytes, formatDuration, shortName } from "../format";
import type { Run } from "../run";
import type { Store } from "../store";
import type { ResourceData, ResourceRow } from "../types";
import { Empty } from "./parts";

const WIDTH = 1200;
const PERCENT = (value: number) => `${value.toFixed(value < 10 ? 1 : 0)} %`;

export function Resources({ store, run }: { store: Store; run: Run }) {
  const [data, setData] = useState<ResourceData | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [zoom, setZoom] = useState<Range | null>(null);
  const [version, grown] = useReducer((n: number) => n + 1, 0);
  useEffect(() => {
    let columns: ResourceData | null = null;
    let gone = false;
    const late: ResourceRow[] = [];
    const stop = run.onRows(({ resources }) => {
      if (resources.length === 0) return;
      if (columns === null) return void late.push(...resources);
      for (const row of resources) add(columns, row);
      grown(0);
    });
    store.api.resources(run.id, WIDTH).then(
      (found) => {
        if (gone) return;
        columns = { ...found, gpus: found.gpus.map((gpu) => ({ ...gpu })) };
        for (const row of late) add(columns, row);
        setData(columns);
      },
      (failure: unknown) => gone || setError(failure instanceof Error ? failure.message : String(failure)),
    );
    setZoom(null);
    return () => {
      gone = true;
      stop();
    };
  }, [run.id, run.generation]);

  const started = run.detail?.info.started ?? 0;
  const charts = useMemo(() => (data === null ? [] : describe(data, started)), [data, version]);
  if (error !== null) return <p class="notice warn">{error}</p>;
  if (data === null) return <p class="quiet">Loading…</p>;
  if (data.time.length === 0) return <Empty title="No sample yet">Processor, memory and GPUs are sampled once a second.</Empty>;
  return (
    <div class="grid">
      {charts.map(({ title, subtitle, lines, bytes, most }) => (
        <ChartCard key={title} title={title} subtitle={subtitle} lines={lines} version={version} height={208} log={false} halfLife={0}
          zoom={zoom} onZoom={setZoom} sync="resources" xName="after" formatX={formatDuration}
          formatY={bytes ? formatBytes : PERCENT} axisY={bytes ? formatBytes : (value) => `${Math.round(value * 10) / 10} %`}
          yRange={[0, most]} binary={bytes} />
      ))}
      {data.gpus.length === 0 && (
        <section class="card" aria-label="GPUs"><h3>GPUs</h3><p class="quiet">None on this machine, or none that this process may use.</p></section>
      )}
    </div>
  );
}

interface Described {
  title: string;
  subtitle: string;
  lines: CardLine[];
  bytes: boolean;
  most: number | null;
}

function describe(data: ResourceData, started: number): Described[] {
  const x = data.time.map((time) => time - started);
  const line = (label: string, color: number, y: (number | null)[], filled = false): CardLine => ({
    key: label, label, color, x, y, gaps: [], filled, last: y.at(-1) ?? null,
  });
  const total = data.ram_total_bytes.at(-1) ?? 0;
  return [
    {
      title: "Processor",
      subtitle: "100 % is one core for the process, all cores for the machine",
      lines: [line("this process", 0, data.cpu_percent, true), line("machine", 1, data.machine_cpu_percent)],
      bytes: false,
      most: 100,
    },
    {
      title: "Memory",
      subtitle: `of ${formatBytes(total)}`,
      lines: [line("this process", 0, data.rss_bytes, true), line("machine", 1, data.ram_used_bytes), line("installed", 7, data.ram_total_bytes)],
      bytes: true,
      most: null,
    },
    ...data.gpus.flatMap((gpu): Described[] => [
      { title: `GPU ${gpu.gpu}`, subtitle: shortName(gpu.name, 40), lines: [line("utilisation", 2, gpu.utilisation_percent, true)], bytes: false, most: 100 },
      {
        title: `Memory of GPU ${gpu.gpu}`,
        subtitle: shortName(gpu.name, 40),
        lines: [line("used", 2, gpu.vram_used_bytes, true), line("installed", 7, gpu.vram_total_bytes)],
        bytes: true,
        most: null,
      },
    ]),
  ];
}

function add(data: ResourceData, [, time, cpu, machine, rss, used, total, gpus]: ResourceRow): void {
  if (time <= (data.time.at(-1) ?? -Infinity)) return; // in the answer already
  const before = data.time.length;
  data.time.push(time);
  data.cpu_percent.push(cpu);
  data.machine_cpu_percent.push(machine);
  data.rss_bytes.push(rss);
  data.ram_used_bytes.push(used);
  data.ram_total_bytes.push(total);
  for (const [gpu, name, utilisation, vram, vramTotal] of gpus) {
    let columns = data.gpus.find((each) => each.gpu === gpu);
    if (columns === undefined) {
      const empty = () => new Array<number | null>(before).fill(null);
      columns = { gpu, name, utilisation_percent: empty(), vram_used_bytes: empty(), vram_total_bytes: empty() };
      data.gpus.push(columns);
    }
    columns.utilisation_percent.push(utilisation);
    columns.vram_used_bytes.push(vram);
    columns.vram_total_bytes.push(vramTotal);
  }
  for (const columns of data.gpus)
    for (const column of [columns.utilisation_percent, columns.vram_used_bytes, columns.vram_total_bytes])
      while (column.length < data.time.length) column.push(null);
}
