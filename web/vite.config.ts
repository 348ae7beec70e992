// Two builds into one folder: the page (index.html, assets/) and, with `--mode report`, the single file that save_html fills.
import { createHash } from "node:crypto";
import { defineConfig, type Plugin } from "vite";

const OUT = process.env["FLODL_STATIC"] ?? "../packages/flodl/src/flodl/monitor/static";

/** Everything into report.html: scripts and styles inline, allowed by their hashes alone. */
function singleFile(): Plugin {
  const hash = (text: string) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
  return {
    name: "single-file",
    enforce: "post",
    generateBundle(_, bundle) {
      let script = "";
      let style = "";
      for (const [name, file] of Object.entries(bundle)) {
        if (name.endsWith(".html")) continue;
        if (file.type === "chunk") script += file.code.replaceAll("</script", "<\\/script");
        else if (name.endsWith(".css")) style += String(file.source);
        delete bundle[name];
      }
      const page = bundle["report.html"];
      if (page?.type !== "asset") throw new Error("report.html is missing from the build");
      const policy =
        `default-src 'none'; script-src ${hash(script)}; style-src ${hash(style)}; img-src data: blob:; ` +
        "font-src data:; base-uri 'none'; form-action 'none'";
      page.source = String(page.source)
        .replace(/\s*<script[^>]*src=[^>]*><\/script>/g, "")
        .replace(/\s*<link[^>]*rel="(stylesheet|modulepreload)"[^>]*>/g, "")
        .replace("<head>", () => `<head>\n    <meta http-equiv="Content-Security-Policy" content="${policy}" />`)
        .replace("</head>", () => `  <style>${style}</style>\n  </head>`)
        .replace("</body>", () => `  <script type="module">${script}</script>\n  </body>`);
    },
  };
}

export default defineConfig(({ mode }) => {
  const report = mode === "report";
  return {
    base: "./",
    publicDir: report ? false : "public",
    define: { __REPORT__: JSON.stringify(report) },
    plugins: report ? [singleFile()] : [],
    worker: { format: "es" },
    build: {
      outDir: OUT,
      emptyOutDir: !report,
      assetsInlineLimit: report ? 1_000_000 : 0,
      modulePreload: false,
      reportCompressedSize: false,
      rollupOptions: { input: report ? "report.html" : "index.html" },
    },
    server: { proxy: { "/api": process.env["FLODL_SERVER"] ?? "http://127.0.0.1:3000" } },
  };
});
