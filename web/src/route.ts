// The address of a view: #/run/<id>/<panel>?with=<id>,<id>. It survives a reload and can be sent to somebody.

export const PANELS = ["metrics", "epochs", "timeline", "devices", "resources", "model", "config", "log"] as const;
export type Panel = (typeof PANELS)[number];

export interface Route {
  run: string | null;
  overlaid: string[];
  panel: Panel;
}

export function parseRoute(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [kind, id, panel] = path.split("/");
  const found = PANELS.find((name) => name === panel) ?? PANELS[0];
  const overlaid = new URLSearchParams(query).getAll("with");
  return { run: kind === "run" && id ? safeDecode(id) : null, overlaid, panel: found };
}

export function formatRoute({ run, overlaid, panel }: Route): string {
  const query = new URLSearchParams(overlaid.map((id) => ["with", id]));
  return `#/run/${encodeURIComponent(run ?? "")}/${panel}${overlaid.length > 0 ? `?${query}` : ""}`;
}

function safeDecode(text: string): string | null {
  try {
    return decodeURIComponent(text);
  } catch {
    return null;
  }
}
