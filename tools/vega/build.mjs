// Bundles page.mjs into llama_ablate/report/vega/vega.min.js, with the licences of what is in it.
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { build } from "esbuild";
import { minify } from "terser";

const target = new URL("../../llama_ablate/report/vega/", import.meta.url);
const bundled = await build({
  entryPoints: ["page.mjs"],
  alias: { vega: "vega-util" }, // vega-lite takes four functions of vega's, which are vega-util's
  bundle: true,
  format: "iife",
  globalName: "vega",
  legalComments: "none",
  metafile: true,
  write: false,
});
const { code } = await minify(bundled.outputFiles[0].text, { compress: { passes: 2 }, mangle: true });
const packages = new Set();
for (const [path, { bytesInOutput }] of Object.entries(Object.values(bundled.metafile.outputs)[0].inputs)) {
  const name = path.match(/^node_modules\/((?:@[^/]+\/)?[^/]+)/)?.[1];
  if (name && bytesInOutput) packages.add(name);
}
const described = [...packages].sort().map((name) => {
  const { version, license } = JSON.parse(readFileSync(`node_modules/${name}/package.json`));
  const file = readdirSync(`node_modules/${name}`).find((entry) => /^licen[cs]e/i.test(entry));
  // vega-lite and vega-selections come without the file; it is that of Vega's other packages.
  const text = readFileSync(file ? `node_modules/${name}/${file}` : "node_modules/vega/LICENSE", "utf8");
  return `${name} ${version} (${license})\n\n${text.trim()}\n`;
});
writeFileSync(new URL("vega.min.js", target), code.replaceAll("</script", "<\\/script") + "\n");
writeFileSync(new URL("LICENSES.txt", target), described.join(`\n${"-".repeat(72)}\n\n`));
