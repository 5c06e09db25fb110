// What each client in Node does: it uses the toolkit `kit`, and prints what it got as JSON.

const bytes = (data) => Buffer.from(data, "base64").length;

// `list` returns names of tools; `call` takes a name, arguments and options; `changed` waits for the
// names of tools after a change, where a client is told of changes; one that `asks` its user approves.
export async function run({ list, call, changed, asks }) {
  const got = { tools: await list() };
  got.sum = (await call("kit__add", { a: 1, b: 2 })).structuredContent;
  const [picture] = (await call("kit__picture", {})).content;
  got.picture = [picture.type, picture.mimeType, bytes(picture.data)];
  got.progress = [];
  await call("kit__step", {}, {
    onprogress: ({ progress, total, message }) => got.progress.push([progress, total, message]),
  });
  const failed = await call("kit__fail", {});
  got.error = [failed.isError, failed._meta["toolbus/error"].executed];
  const cancelling = new AbortController();
  const waiting = call("kit__wait", {}, { signal: cancelling.signal });
  await call("kit__until_waiting", {});
  cancelling.abort();
  got.ended = await waiting.then(() => "result", () => "cancelled");
  got.cancelled = (await call("kit__until_cancelled", {})).structuredContent.result;
  if (asks) got.approved = (await call("kit__pay", { amount: 5 })).content[0].text;
  if (changed) {
    await call("kit__bring", {});
    got.came = (await changed()).includes("guest__hello");
    await call("kit__leave", {});
    got.went = !(await changed()).includes("guest__hello");
  }
  console.log(JSON.stringify(got));
}
