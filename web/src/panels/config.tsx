// Every field of the configuration with where it was set; several runs side by side.
import { useState } from "preact/hooks";
import { formatAny, formatBytes, formatTime, shortName } from "../format";
import type { Run } from "../run";
import { Empty } from "./parts";

export function Config({ runs }: { runs: Run[] }) {
  const [filter, setFilter] = useState("");
  const [onlySet, setOnlySet] = useState(false);
  const [onlyDifferent, setOnlyDifferent] = useState(false);
  const several = runs.length > 1;
  const settings = runs.map((run) => new Map(run.detail?.config.map((setting) => [setting.path, setting])));
  const paths = [...new Set(settings.flatMap((each) => [...each.keys()]))].sort();
  const wanted = filter.trim().toLowerCase();
  const rows = paths
    .map((path) => {
      const each = settings.map((found) => found.get(path));
      const texts = each.map((setting) => (setting === undefined ? "" : formatAny(setting.value)));
      const different = new Set(texts).size > 1;
      return { path, each, texts, different, set: each.some((setting) => setting !== undefined && !isDefault(setting.origin)) };
    })
    .filter((row) => (!onlySet || row.set) && (!onlyDifferent || !several || row.different))
    .filter((row) => wanted === "" || [row.path, ...row.texts].some((text) => text.toLowerCase().includes(wanted)));
  return (
    <div class="columns">
      <section class="card" aria-label="Configuration">
        <div class="toolbar">
          <h2>Configuration</h2>
          <input type="search" placeholder="Filter fields" aria-label="Filter fields by name or value" value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />
          <button type="button" class="toggle" aria-pressed={onlySet} onClick={() => setOnlySet(!onlySet)}>Without defaults</button>
          {several && <button type="button" class="toggle" aria-pressed={onlyDifferent} onClick={() => setOnlyDifferent(!onlyDifferent)}>Only differences</button>}
        </div>
        {rows.length === 0 ? <Empty title={paths.length === 0 ? "No configuration was recorded" : "No field matches"} /> : (
          <div class="table" tabIndex={0} role="region" aria-label="Fields of the configuration">
            <table class="left">
              <thead>
                <tr>
                  <th scope="col">Field</th>
                  {several ? runs.map((run) => <th key={run.id} scope="col" title={run.name}>{shortName(run.name, 30)}</th>) : <><th scope="col">Value</th><th scope="col">Set in</th></>}
                </tr>
              </thead>
              <tbody>
                {rows.map((row) => (
                  <tr key={row.path} class={several && row.different ? "different" : undefined}>
                    <th scope="row" class="mono"><Long text={row.path} most={60} /></th>
                    {row.each.map((setting, i) => (
                      <td key={runs[i]?.id} class="mono" title={several ? setting?.origin ?? "" : undefined}>
                        {setting === undefined ? <span class="quiet">–</span> : <Long text={row.texts[i] ?? ""} most={200} />}
                      </td>
                    ))}
                    {!several && <td class={isDefault(row.each[0]?.origin ?? null) ? "quiet" : undefined}>{row.each[0]?.origin ?? "–"}</td>}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </section>
      {runs[0] !== undefined && <Facts run={runs[0]} />}
    </div>
  );
}

/** Where and how it was run. */
function Facts({ run }: { run: Run }) {
  const info = run.detail?.info;
  if (info === undefined) return null;
  const commit = info.git_commit === null ? "–" : `${info.git_commit.slice(0, 12)}${info.git_dirty ? ", with changes that were not committed" : ""}`;
  const facts: [string, string][] = [
    ["Run", info.run_id],
    ["Started", formatTime(info.started)],
    ["Command", info.command],
    ["Machine", `${info.host}, process ${info.pid}`],
    ["Commit", commit],
    ...entries(info.hardware),
    ...entries(info.seeds).map(([name, value]): [string, string] => [`seed ${name}`, value]),
    ...entries(info.versions).map(([name, value]): [string, string] => [`version of ${name}`, value]),
  ];
  return (
    <section class="card facts" aria-label="Environment">
      <h2>Environment</h2>
      <dl>
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name.replaceAll("_", " ")}</dt>
            <dd><Long text={value} most={160} /></dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

function entries(values: Record<string, unknown>): [string, string][] {
  return Object.entries(values).map(([name, value]) => {
    if (name.endsWith("_bytes") && typeof value === "number") return [name.slice(0, -"_bytes".length), formatBytes(value)];
    return [name, Array.isArray(value) && value.length === 0 ? "none" : formatAny(value)];
  });
}

function isDefault(origin: string | null): boolean {
  return origin === null || /^default/.test(origin);
}

/** Text whose end is shown on demand. */
export function Long({ text, most }: { text: string; most: number }) {
  const [all, setAll] = useState(false);
  if (text.length <= most) return <span class="text">{text}</span>;
  return (
    <span class="text">
      {all ? text : `${text.slice(0, most)}…`}{" "}
      <button type="button" class="link" onClick={() => setAll(!all)}>{all ? "less" : `all ${text.length} characters`}</button>
    </span>
  );
}
