// Send requests to the service. The token goes in a header, never in a URL.
const KEY = "tocsin-token";
export const token = () => sessionStorage.getItem(KEY) ?? "";
export const useToken = (text) => sessionStorage.setItem(KEY, text);

function headers() {
  return token() ? { Authorization: `Bearer ${token()}` } : {};
}

export async function ask(method, path, body) {
  const options = { method, headers: headers() };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  const answer = await fetch(path, options);
  if (answer.status === 204) return null;
  const content = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(content.error?.message ?? answer.statusText), { status: answer.status, error: content.error });
  return content;
}

// Stream matches after a number, of all rules or of one ("&rule=…"), while `wanted` returns true. Reconnects after failures.
export async function listen(after, rule, wanted, take) {
  let wait = 300;
  while (wanted()) {
    try {
      const answer = await fetch(`/matches/stream?after=${after}${rule}`, { headers: headers() });
      if (!answer.ok) throw new Error(answer.statusText);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done || !wanted()) { reader.cancel(); break; }
        wait = 300;
        const events = (text + value).split("\n\n");
        text = events.pop();
        const matches = [];
        for (const event of events) {
          const data = event.split("\n").find((line) => line.startsWith("data: "));
          if (data && event.includes("event: match")) matches.push(JSON.parse(data.slice(6)));
        }
        if (matches.length) { after = matches.at(-1).number; take(matches); }
      }
    } catch { /* retried below */ }
    await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(wait * 2, 5000);
  }
}
