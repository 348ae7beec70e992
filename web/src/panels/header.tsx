// The selected run at a glance, and its two buttons.
import { useRef, useState } from "preact/hooks";
import { formatCount, formatDuration, formatPercent, formatShort, formatTime, shortName } from "../format";
import type { Run } from "../run";
import type { Store } from "../store";
import { Bar, Stat, StateChip } from "./parts";

export function Header({ store, run }: { store: Store; run: Run }) {
  const info = run.detail?.info;
  if (info === undefined) return null;
  const running = info.state === "running";
  const done = (info.last_epoch ?? -1) + 1;
  const current = running && info.total_epochs ? Math.min(done + 1, info.total_epochs) : running ? done + 1 : done;
  const { progress, eta, stepsPerSecond } = run;
  return (
    <section class="head card" aria-label="The selected run">
      <div class="head-title">
        <h1 title={run.name}>{shortName(run.name, 80)}</h1>
        <StateChip state={info.state} />
        <span class="quiet id">{run.name !== run.id && run.id}</span>
        <span class="spacer" />
        {store.api.live && running && <Controls store={store} run={run} />}
        {!store.api.live && <span class="quiet">Report of {formatTime(store.api.saved ?? 0)}</span>}
      </div>
      {progress !== null && (
        <div class="head-progress">
          <Bar fraction={progress} label="Progress of the training" />
          <span class="percent">{formatPercent(progress)}</span>
        </div>
      )}
      <dl class="stats">
        <Stat name="Epoch" value={`${formatCount(current)}${info.total_epochs ? ` / ${formatCount(info.total_epochs)}` : ""}`}
          title={`${formatCount(done)} complete`} />
        <Stat name="Step" value={`${formatCount(info.last_step ?? 0)}${info.total_steps ? ` / ${formatCount(info.total_steps)}` : ""}`} />
        <Stat name="Elapsed" value={formatDuration(info.seconds)} title={`Started ${formatTime(info.started)}`} />
        {running && <Stat name="Time left" value={eta === null ? "–" : formatDuration(eta)}
          title={eta === null ? "Known when the run says how long it will be" : `Until about ${formatTime(Date.now() / 1000 + eta)}`} />}
        <Stat name="Speed" value={stepsPerSecond === null ? "–" : `${formatShort(Number(stepsPerSecond.toPrecision(3)))} steps/s`}
          title="Over the last epochs" />
        {info.ended !== null && <Stat name="Ended" value={formatTime(info.ended)} />}
      </dl>
      {info.error && (
        <div class="notice bad" role="alert">
          <strong>Failed</strong> <code>{info.error}</code>
        </div>
      )}
      {info.state === "stale" && (
        <p class="notice warn">
          The training gave no sign of life since {formatTime(info.heartbeat)}: it was killed, or its machine is gone. What it recorded until then is below.
        </p>
      )}
      {run.problem !== null && <p class="notice warn" role="alert">{run.problem}</p>}
    </section>
  );
}

const ASKS = {
  stop: {
    button: "Stop",
    title: "Stop this training?",
    text: "It ends after the step it is at, saves its state, and can be resumed from there.",
    confirm: "Stop training",
  },
  save: {
    button: "Save checkpoint",
    title: "Save a checkpoint now?",
    text: "The training saves its state after the step it is at, and goes on.",
    confirm: "Save checkpoint",
  },
} as const;

function Controls({ store, run }: { store: Store; run: Run }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [action, setAction] = useState<"stop" | "save">("save");
  const [error, setError] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const waiting = run.detail?.audit.find((row) => row.taken === null && row.outcome === null);
  const ask = (what: "stop" | "save") => {
    setAction(what);
    setError(null);
    dialog.current?.showModal();
  };
  const send = async () => {
    setBusy(true);
    try {
      await store.control(action);
      dialog.current?.close();
    } catch (failure) {
      setError(failure instanceof Error ? failure.message : String(failure));
    } finally {
      setBusy(false);
    }
  };
  const text = ASKS[action];
  return (
    <div class="controls">
      {waiting !== undefined && <span class="quiet" role="status">{waiting.action} requested…</span>}
      <button type="button" onClick={() => ask("save")}>{ASKS.save.button}</button>
      <button type="button" class="danger" onClick={() => ask("stop")}>{ASKS.stop.button}</button>
      <dialog ref={dialog} aria-labelledby="ask-title" onClick={(event) => event.target === event.currentTarget && event.currentTarget.close()}>
        <form method="dialog">
          <h2 id="ask-title">{text.title}</h2>
          <p class="dialog-run" title={run.name}>{shortName(run.name, 80)}</p>
          <p>{text.text}</p>
          <p class="quiet">The request is written to the run's audit list (in Log).</p>
          {error !== null && <p class="notice bad" role="alert">{error}</p>}
          <div class="dialog-buttons">
            <button type="submit" value="cancel">Cancel</button>
            <button type="button" class={action === "stop" ? "danger solid" : "primary"} disabled={busy} onClick={() => void send()}>{text.confirm}</button>
          </div>
        </form>
      </dialog>
    </div>
  );
}
