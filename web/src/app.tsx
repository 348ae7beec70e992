// The page: runs on the left, the selected one on the right.
import { useEffect, useState } from "preact/hooks";
import { Config } from "./panels/config";
import { Devices } from "./panels/devices";
import { Epochs } from "./panels/epochs";
import { Header } from "./panels/header";
import { Log } from "./panels/log";
import { Metrics } from "./panels/metrics";
import { Model } from "./panels/model";
import { Empty } from "./panels/parts";
import { Resources } from "./panels/resources";
import { RunList } from "./panels/runs";
import { Tabs } from "./panels/tabs";
import { Timeline } from "./panels/timeline";
import { shortName } from "./format";
import { PANELS, type Panel } from "./route";
import type { Run } from "./run";
import { type Store, useStore } from "./store";
import { setTheme, type Theme, theme } from "./theme";

const TITLES: Record<Panel, string> = {
  metrics: "Metrics",
  epochs: "Epochs",
  timeline: "Timeline",
  devices: "Devices",
  resources: "Resources",
  model: "Model",
  config: "Configuration",
  log: "Log",
};

export function App({ store }: { store: Store }) {
  useStore(store);
  const [listOpen, setListOpen] = useState(false);
  const run = store.run;
  useEffect(() => {
    const state = run?.detail?.info.state;
    document.title = run === null ? "floDl" : `${state === "running" ? "▶ " : ""}${run.name.slice(0, 60)} · floDl`;
  });
  const several = store.runs !== null && (store.api.live || store.runs.length > 1);
  return (
    <div class={several ? "page" : "page alone"}>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>To the charts</a>
      <header class="top">
        <span class="brand"><Logo /> floDl</span>
        {several && (
          <button type="button" class="list-button" aria-expanded={listOpen} aria-controls="runs" onClick={() => setListOpen(!listOpen)}>
            Runs <span class="count">{store.runs?.length ?? 0}</span>
          </button>
        )}
        <span class="spacer" />
        <Connection store={store} />
        <ThemeSwitch />
      </header>
      {several && (
        <aside id="runs" class={listOpen ? "side open" : "side"}>
          <RunList store={store} onChosen={() => setListOpen(false)} />
        </aside>
      )}
      <main id="main" tabIndex={-1}>
        <Content store={store} run={run} />
      </main>
      <p class="visually-hidden" role="status" aria-live="polite">{store.announcement}</p>
    </div>
  );
}

function Content({ store, run }: { store: Store; run: Run | null }) {
  if (store.error !== null)
    return <Empty title="The dashboard cannot be shown"><span role="alert">{store.error}</span> Trying again…</Empty>;
  if (store.runs === null) return <p class="loading quiet">Loading…</p>;
  if (store.runs.length === 0)
    return (
      <Empty title="No run yet">
        Start a training in this folder, for example <code>fdl quickstart</code>: it appears here by itself.
      </Empty>
    );
  if (run === null) return <p class="loading quiet">Loading…</p>;
  if (run.detail === null)
    return run.problem === null ? <p class="loading quiet">Loading…</p> : <Empty title="This run cannot be read"><span role="alert">{run.problem}</span></Empty>;
  const warnings = run.events.filter((event) => event.kind === "warning").length;
  const counts: Partial<Record<Panel, number>> = { epochs: run.epochs.length, log: warnings };
  const tabs = PANELS.map((key) => ({ key, text: TITLES[key], ...(counts[key] === undefined ? {} : { count: counts[key] }) }));
  return (
    <>
      <Header store={store} run={run} />
      <Tabs label="Panels" tabs={tabs} current={store.panel} onChange={(key) => store.go(key as Panel)} panel="main" />
      <div id="panel-main" role="tabpanel" aria-labelledby={`tab-main-${store.panel}`} class="panel">
        <Shown store={store} run={run} />
      </div>
    </>
  );
}

function Shown({ store, run }: { store: Store; run: Run }) {
  switch (store.panel) {
    case "metrics":
      return <Metrics store={store} />;
    case "epochs":
      return <Epochs key={run.id} run={run} />;
    case "timeline":
      return <Timeline store={store} run={run} />;
    case "devices":
      return <Devices key={run.id} store={store} run={run} />;
    case "resources":
      return <Resources key={run.id} store={store} run={run} />;
    case "model":
      return <Model store={store} run={run} />;
    case "config":
      return <Config runs={store.shown.filter((each) => each.detail !== null)} />;
    case "log":
      return <Log key={run.id} run={run} />;
  }
}

function Connection({ store }: { store: Store }) {
  const { status } = store;
  const [, tick] = useState(0);
  useEffect(() => {
    if (status.state !== "lost") return;
    const timer = setInterval(() => tick(Date.now()), 500);
    return () => clearInterval(timer);
  }, [status]);
  if (!store.api.live) return null;
  if (status.state === "open") return <span class="connection open" title="What happens appears at once"><i class="dot" />live</span>;
  if (status.state !== "lost") return <span class="connection"><i class="dot" />connecting…</span>;
  const seconds = Math.max(0, Math.ceil((status.retryAt - Date.now()) / 1000));
  return (
    <span class="connection lost">
      <i class="dot" />{status.reason === null ? "connection lost" : `refused (${shortName(status.reason, 80)})`}, {Number.isFinite(seconds) && seconds > 0 ? `next try in ${seconds} s` : "trying…"}
      <button type="button" onClick={() => store.hurry()}>Try now</button>
    </span>
  );
}

const NEXT: Record<Theme, Theme> = { auto: "light", light: "dark", dark: "auto" };

function ThemeSwitch() {
  const [chosen, setChosen] = useState<Theme>(theme);
  const change = () => {
    setTheme(NEXT[chosen]);
    setChosen(NEXT[chosen]);
  };
  return (
    <button type="button" class="theme" onClick={change} title="Light, dark, or as the system is" aria-label={`Colours: ${chosen}`}>
      <i class={`theme-icon ${chosen}`} /> {chosen}
    </button>
  );
}

function Logo() {
  return (
    <svg viewBox="0 0 32 32" width="22" height="22" aria-hidden="true">
      <rect width="32" height="32" rx="8" class="logo-ground" />
      <path d="M6 9c6 0 5 12 10 14s6-8 10-8" fill="none" stroke="#fff" stroke-width="3" stroke-linecap="round" />
      <circle cx="26" cy="15" r="2.6" fill="#fff" />
    </svg>
  );
}
