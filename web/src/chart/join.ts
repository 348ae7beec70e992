// Lines with places of their own on one axis, as uPlot wants them. Its own join looks each place up in a map; this walks once.
import type uPlot from "uplot";

/** A line's places, ascending, and its columns. */
export type Table = [number[], ...(number | null)[][]];

/** One x for all, and each column with `undefined` where its line has no point. */
export function join(tables: Table[]): uPlot.AlignedData {
  const [first] = tables;
  if (first === undefined) return [[]];
  if (tables.every(([x]) => sameNumbers(x, first[0]))) return [first[0], ...tables.flatMap(([, ...columns]) => columns)];
  const every = Float64Array.from(tables.flatMap(([x]) => x)).sort();
  const x: number[] = [];
  for (const at of every) if (at !== x.at(-1)) x.push(at);
  const joined = tables.flatMap(([own, ...columns]) => {
    const places: number[] = [];
    let i = 0;
    for (const at of own) {
      while (x[i] !== at) i++;
      places.push(i);
    }
    return columns.map((column) => {
      const spread = new Array<number | null | undefined>(x.length).fill(undefined);
      places.forEach((place, k) => (spread[place] = column[k]));
      return spread;
    });
  });
  return [x, ...joined];
}

function sameNumbers(a: number[], b: number[]): boolean {
  return a === b || (a.length === b.length && a.every((value, i) => value === b[i]));
}
