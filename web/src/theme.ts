// Light, dark, or as the system is.
import { useEffect, useState } from "preact/hooks";
import { load, save } from "./settings";

export type Theme = "auto" | "light" | "dark";

const listeners = new Set<() => void>();
const system = matchMedia("(prefers-color-scheme: dark)");
system.addEventListener("change", () => {
  apply();
  tell();
});

export function theme(): Theme {
  return load("theme", "auto");
}

export function setTheme(chosen: Theme): void {
  save("theme", chosen);
  apply();
  tell();
}

export function apply(): void {
  document.documentElement.dataset["theme"] = isDark() ? "dark" : "light";
}

function isDark(): boolean {
  const chosen = theme();
  return chosen === "auto" ? system.matches : chosen === "dark";
}

/** "dark" or "light"; the component renders again when that changes. */
export function useTheme(): "dark" | "light" {
  const [dark, setDark] = useState(isDark);
  useEffect(() => {
    const listener = () => setDark(isDark());
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, []);
  return dark ? "dark" : "light";
}

function tell(): void {
  for (const listener of [...listeners]) listener();
}
