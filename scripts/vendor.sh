#!/usr/bin/env bash
# Build src/tocsin/service/static/vendor: the libraries of the console and of /docs, from the npm registry, with their
# licences. Needs node and npm; run it to update them, and commit the result.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/src/tocsin/service/static/vendor
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat > package.json <<END
{"name": "vendor", "private": true, "dependencies": {
  "@codemirror/autocomplete": "6.20.4", "@codemirror/commands": "6.11.1", "@codemirror/language": "6.13.1",
  "@codemirror/lint": "6.9.7", "@codemirror/state": "6.7.6", "@codemirror/view": "6.43.15", "@lezer/highlight": "1.2.5",
  "esbuild": "0.28.2", "swagger-ui-dist": "5.34.1", "uplot": "1.6.32"}}
END
npm install --silent --no-audit --no-fund --ignore-scripts
cat > editor.js <<'END'
export { EditorView, keymap, lineNumbers, drawSelection, highlightActiveLine, placeholder } from "@codemirror/view";
export { EditorState, Compartment } from "@codemirror/state";
export { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
export { StreamLanguage, syntaxHighlighting, HighlightStyle, bracketMatching } from "@codemirror/language";
export { linter, lintGutter, forceLinting } from "@codemirror/lint";
export { autocompletion, completionKeymap } from "@codemirror/autocomplete";
export { tags } from "@lezer/highlight";
END
mkdir -p "$out"
rm -f "$out"/*
node_modules/.bin/esbuild editor.js --bundle --minify --format=esm --target=es2022 --legal-comments=none \
  --outfile="$out/codemirror.js" --log-level=error
cp node_modules/uplot/dist/uPlot.esm.js "$out/uplot.js"
cp node_modules/uplot/dist/uPlot.min.css "$out/uplot.css"
cp node_modules/swagger-ui-dist/swagger-ui-bundle.js node_modules/swagger-ui-dist/swagger-ui.css "$out"
sed -i 's|^//# sourceMappingURL=.*||; s|/\*# sourceMappingURL=.*\*/||' "$out"/*.js "$out"/*.css
{
  echo "What is in this folder, and under which licence. scripts/vendor.sh made it."
  for package in uplot swagger-ui-dist $(cd node_modules && ls -d @codemirror/* @lezer/* @marijn/* crelt style-mod w3c-keyname); do
    echo
    node -p "const p = require('./node_modules/$package/package.json'); '## ' + p.name + ' ' + p.version + ' (' + p.license + ')'"
    echo
    cat node_modules/"$package"/LICENSE* 2>/dev/null || true
    cat node_modules/"$package"/NOTICE 2>/dev/null || true
  done
} > "$out/LICENCES.txt"
ls -l "$out"
