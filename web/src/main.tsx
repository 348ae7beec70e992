import { render } from "preact";
import { type Api, ReportApi, ServerApi } from "./api";
import { App } from "./app";
import { expose } from "./inspect";
import { Store } from "./store";
import "./style/base.css";
import "./style/layout.css";
import "./style/panels.css";
import { apply } from "./theme";
import type { ReportData } from "./types";

apply();
const saved = document.getElementById("flodl-data")?.textContent;
const api: Api = saved ? new ReportApi(JSON.parse(saved) as ReportData) : new ServerApi();
const store = new Store(api);
expose(() => ({
  runs: store.runs,
  selected: store.selected,
  overlaid: store.overlaid,
  panel: store.panel,
  connection: store.status.state,
  run: store.run?.detail ? { ...store.run.detail, epochs: store.run.epochs, events: store.run.events, seen: store.run.seen } : null,
}));
const place = document.getElementById("app");
if (place !== null) render(<App store={store} />, place);
void store.start();
