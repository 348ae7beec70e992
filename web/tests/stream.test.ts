import { expect, test } from "vitest";
import { formatDuration, formatValue } from "../src/format";
import { Run } from "../src/run";
import { formatRoute, parseRoute } from "../src/route";
import { SseParser } from "../src/stream/sse";
import type { Api } from "../src/api";
import type { RowsMessage } from "../src/types";

test("messages are whole wherever the stream is cut", () => {
  const text = 'id: 1\nevent: rows\ndata: {"a":\ndata: "é\\n🚀"}\n\n: beat\n\nid: 2\nevent: info\ndata: {}\n\n';
  for (let cut = 0; cut <= text.length; cut++) {
    const parser = new SseParser();
    const found = [...parser.push(text.slice(0, cut)), ...parser.push(text.slice(cut))];
    expect(found).toEqual([
      { id: "1", event: "rows", data: '{"a":\n"é\\n🚀"}' },
      { id: "2", event: "info", data: "{}" },
    ]);
  }
});

const info = { last_id: 10, state: "running", seconds: 1, last_step: 5, last_epoch: 0, total_epochs: null, total_steps: null };
const api = {
  run: async () => ({ info, config: [], series: [{ id: 1, name: "loss", count: 5, nan: 0, inf: 0, ranks: [0] }], artifacts: [], audit: [] }),
  epochs: async () => [{ id: 9, number: 0, step: 5, time: 1, seconds: 1, metrics: {} }],
  events: async () => ({ events: [], more: false }),
} as unknown as Api;

function rows(ids: number[], more: Partial<RowsMessage> = {}): RowsMessage {
  const points = ids.map((id): RowsMessage["points"][0] => [id, 1, 0, id, 0, 1, 0.5, 0]);
  return { run: "r", names: {}, points, epochs: [], events: [], resources: [], artifacts: [], last_id: ids.at(-1) ?? 0, more: false, ...more };
}

test("what is sent twice counts once, and a cut drops what came after its step", async () => {
  const run = new Run("r");
  const seen: number[] = [];
  run.onRows(({ points }) => seen.push(...points.map((point) => point[0])));
  run.add(rows([8, 9, 10, 11])); // while it loads
  await run.load(api);
  run.add(rows([10, 11, 12]));
  expect(seen).toEqual([11, 12]);
  expect(run.series.get(1)?.count).toBe(7);
  const cut = { id: 13, time: 2, step: 4, rank: 0, kind: "cut", start: 2, seconds: null, data: {} };
  run.add(rows([], { events: [cut], last_id: 13 }));
  expect(run.epochs).toEqual([]);
  expect(run.seen).toBe(13);
});

test("an address tells the view and back", () => {
  const route = { run: "a b/ü?", overlaid: ["x&y", "z"], panel: "log" as const };
  expect(parseRoute(formatRoute(route))).toEqual(route);
  expect(parseRoute("#/run/%E0%A4%A/x").run).toBeNull();
});

test("numbers as people read them", () => {
  expect([0.0000123, 1.52644, 0.91, 123456, "nan" as const, "-inf" as const].map(formatValue)).toEqual(["1.23e-5", "1.5264", "0.91", "123,456", "NaN", "−∞"]);
  expect([0.0004, 0.049, 4.8, 48, 192, 7500, 273600].map(formatDuration)).toEqual(["400 µs", "49 ms", "4.8 s", "48 s", "3 m 12 s", "2 h 05 m", "3 d 04 h"]);
});
