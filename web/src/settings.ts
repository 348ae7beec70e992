// What this browser remembers. Without storage (a private window) everything works, for as long as the page is open.
import { useState } from "preact/hooks";

const kept = new Map<string, string>();

export function load<T>(name: string, otherwise: T): T {
  try {
    const text = kept.get(name) ?? localStorage.getItem(`flodl-${name}`);
    return text === null ? otherwise : (JSON.parse(text) as T);
  } catch {
    return otherwise;
  }
}

export function save(name: string, value: unknown): void {
  const text = JSON.stringify(value);
  kept.set(name, text);
  try {
    localStorage.setItem(`flodl-${name}`, text);
  } catch {
    // kept for as long as the page is open
  }
}

export function useSetting<T>(name: string, otherwise: T): [T, (value: T) => void] {
  const [value, setValue] = useState<T>(() => load(name, otherwise));
  return [
    value,
    (next) => {
      save(name, next);
      setValue(() => next);
    },
  ];
}
