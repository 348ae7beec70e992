// Tabs as screen readers know them: one stop for the Tab key, arrow keys between them.
import { useEffect, useRef } from "preact/hooks";

interface Props {
  label: string;
  tabs: { key: string; text: string; count?: number }[];
  current: string;
  onChange: (key: string) => void;
  /** The id of the panel is `panel-` and this. */
  panel: string;
}

export function Tabs({ label, tabs, current, onChange, panel }: Props) {
  const list = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const selected = list.current?.querySelector<HTMLElement>('[aria-selected="true"]');
    if (list.current !== null && selected != null) list.current.scrollLeft = selected.offsetLeft - list.current.offsetLeft - 40;
  }, [current]);
  const onKey = (event: KeyboardEvent) => {
    const at = tabs.findIndex((tab) => tab.key === current);
    const last = tabs.length - 1;
    const next = { ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at === 0 ? last : at - 1, Home: 0, End: last }[event.key];
    const tab = next === undefined ? undefined : tabs[next];
    if (tab === undefined) return;
    event.preventDefault();
    onChange(tab.key);
    list.current?.querySelectorAll<HTMLButtonElement>("button")[next ?? 0]?.focus();
  };
  return (
    <div class="tabs" role="tablist" aria-label={label} ref={list} onKeyDown={onKey}>
      {tabs.map((tab) => (
        <button key={tab.key} type="button" role="tab" id={`tab-${panel}-${tab.key}`} aria-selected={tab.key === current} aria-controls={`panel-${panel}`}
          tabIndex={tab.key === current ? 0 : -1} onClick={() => onChange(tab.key)}>
          {tab.text}
          {tab.count !== undefined && tab.count > 0 && <span class="count">{tab.count}</span>}
        </button>
      ))}
    </div>
  );
}
