// The drawing and the summary of the model. The drawing is an image: nothing in it can run.
import { useEffect, useState } from "preact/hooks";
import type { Run } from "../run";
import type { Store } from "../store";
import { Empty } from "./parts";

const ZOOMS = [0.25, 0.5, 0.75, 1, 1.5, 2, 3];

export function Model({ store, run }: { store: Store; run: Run }) {
  const names = run.detail?.artifacts ?? [];
  const drawings = names.filter((name) => name.endsWith(".svg"));
  const texts = names.filter((name) => !name.endsWith(".svg"));
  if (names.length === 0) return <Empty title="The model was not recorded">A Trainer records its drawing and its summary when it starts.</Empty>;
  return (
    <div class="model">
      {drawings.map((name) => <Drawing key={`${run.id} ${name}`} store={store} run={run} name={name} />)}
      {texts.map((name) => <Text key={`${run.id} ${name}`} store={store} run={run} name={name} />)}
    </div>
  );
}

function useArtifact(store: Store, run: Run, name: string): { text: string | null; error: string | null } {
  const [found, setFound] = useState<{ text: string | null; error: string | null }>({ text: null, error: null });
  useEffect(() => {
    let gone = false;
    store.api.artifact(run.id, name).then(
      (text) => gone || setFound({ text, error: null }),
      (error: unknown) => gone || setFound({ text: null, error: String(error instanceof Error ? error.message : error) }),
    );
    return () => {
      gone = true;
    };
  }, [run.id, name, run.artifactVersion]);
  return found;
}

function Drawing({ store, run, name }: { store: Store; run: Run; name: string }) {
  const { text, error } = useArtifact(store, run, name);
  const [url, setUrl] = useState<string | null>(null);
  const [zoom, setZoom] = useState<number | null>(null); // null: as wide as fits
  const [natural, setNatural] = useState(0);
  useEffect(() => {
    if (text === null) return;
    const made = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [text]);
  const step = (by: number) => {
    const now = ZOOMS.findIndex((each) => each >= (zoom ?? 1));
    setZoom(ZOOMS[Math.min(ZOOMS.length - 1, Math.max(0, now + by))] ?? 1);
  };
  return (
    <section class="card" aria-label={name}>
      <div class="toolbar">
        <h2>{name === "model.svg" ? "Drawing" : name}</h2>
        <span class="spacer" />
        <button type="button" aria-label="Smaller" onClick={() => step(-1)}>−</button>
        <button type="button" aria-label="Larger" onClick={() => step(1)}>+</button>
        <button type="button" class="toggle" aria-pressed={zoom === null} onClick={() => setZoom(null)}>Fit</button>
        {url !== null && <a class="button" href={url} download={name}>Download</a>}
      </div>
      {error !== null ? <p class="notice warn">{error}</p> : (
        <div class="paper" tabIndex={0} role="region" aria-label="Drawing of the model, scrollable">
          {url !== null && (
            <img src={url} alt="The model as a graph; its summary says the same in words"
              onLoad={(event) => setNatural(event.currentTarget.naturalWidth)}
              style={zoom === null || natural === 0 ? { maxWidth: "100%" } : { width: `${natural * zoom}px`, maxWidth: "none" }} />
          )}
        </div>
      )}
    </section>
  );
}

function Text({ store, run, name }: { store: Store; run: Run; name: string }) {
  const { text, error } = useArtifact(store, run, name);
  return (
    <section class="card" aria-label={name}>
      <h2>{/^model(\.txt)?$/.test(name) ? "Summary" : name}</h2>
      {error !== null ? <p class="notice warn">{error}</p> : <pre tabIndex={0}>{text ?? "Loading…"}</pre>}
    </section>
  );
}
