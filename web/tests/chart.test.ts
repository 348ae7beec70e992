import { expect, test } from "vitest";
import { clusters, logTicks, quantity, section } from "../src/chart/scale";
import { lonePoints, tickLabel } from "../src/chart/plot";
import { smooth } from "../src/chart/smooth";
import { join, type Table } from "../src/chart/join";
import uPlot from "uplot";

test("a constant stays flat, and gaps stay gaps", () => {
  const x = [0, 1, 5, 6, 100];
  expect(smooth(x, [0.3, 0.3, null, 0.3, 0.3], 10)).toEqual([0.3, 0.3, null, 0.3, 0.3].map((y) => (y === null ? null : expect.closeTo(y, 12))));
});

test("lines with places of their own share an axis", () => {
  const joined = join([[[1, 3, 5], [10, null, 50]], [[2, 3, 6], [0.2, 0.3, 0.6], [2, 3, 6]]]);
  expect(joined).toEqual([[1, 2, 3, 5, 6], [10, undefined, null, 50, undefined], [undefined, 0.2, 0.3, undefined, 0.6], [undefined, 2, 3, undefined, 6]]);
  expect(join([[[1, 2], [3, 4]], [[1, 2], [5, null]]])).toEqual([[1, 2], [3, 4], [5, null]]);
  expect(join([])).toEqual([[]]);
});

test("on random lines the axis is uPlot's own", () => {
  const random = () => Math.floor(Math.random() * 60);
  for (let round = 0; round < 200; round++) {
    const tables = Array.from({ length: 1 + (round % 5) }, (): Table => {
      const x = [...new Set(Array.from({ length: random() }, random))].sort((a, b) => a - b);
      return [x, x.map((at) => (at % 7 === 0 ? null : at / 3))];
    });
    expect(join(tables)).toEqual(uPlot.join(tables as uPlot.AlignedData[]));
  }
});

test("after one half-life a step is half way", () => {
  const x = Array.from({ length: 2001 }, (_, i) => i);
  const y = x.map((i) => (i < 1000 ? 0 : 1));
  expect(smooth(x, y, 100)[1100]).toBeCloseTo(0.5, 1);
});

test("a learning rate beside a loss gets a chart of its own", () => {
  const ranges = new Map([
    ["loss", { min: 0.1, max: 2.5 }],
    ["eval_loss", { min: 0.3, max: 2.2 }],
    ["lr", { min: 1e-5, max: 1e-3 }],
  ]);
  expect(clusters(ranges)).toEqual([["loss", "eval_loss"], ["lr"]]);
});

test("charts do not jump while their lines grow a little", () => {
  const before = [["a", "b"]];
  expect(clusters(new Map([["a", { min: 0, max: 1 }], ["b", { min: 0, max: 0.08 }]]), before)).toBe(before);
  expect(clusters(new Map([["a", { min: 0, max: 1 }], ["b", { min: 0, max: 0.01 }]]), before)).toEqual([["a"], ["b"]]);
});

test("names that measure the same on other data are one quantity", () => {
  expect(["loss", "eval_loss", "loss.train", "val.loss"].map(quantity)).toEqual(["loss", "loss", "loss", "loss"]);
  expect(["head.0.entropy", "head.1.entropy"].map(quantity)).toEqual(["head.entropy", "head.entropy"]);
  expect(["lr", "head.0.entropy", "test.accuracy"].map(section)).toEqual(["", "head", ""]);
  expect(quantity("test")).toBe("test");
});

test("a point between gaps is drawn; another line's x is no gap", () => {
  expect(lonePoints([1, null, 2, null, 3, undefined, 4])).toEqual([0, 2]);
  expect(lonePoints([null, undefined, 5])).toEqual([2]);
});

test("labels of neighbouring ticks differ", () => {
  expect([1.0001, 1.0002].map((tick) => tickLabel(tick, 0.0001))).toEqual(["1.0001", "1.0002"]);
  expect([10000, 12500].map((tick) => tickLabel(tick, 2500))).toEqual(["10k", "12.5k"]);
  expect([3.25, 3.5].map((tick) => tickLabel(tick, 0.25))).toEqual(["3.25", "3.50"]);
  expect(logTicks(0.15, 0.6, 5)).toEqual([0.2, 0.3, 0.4, 0.5, 0.6]);
});
