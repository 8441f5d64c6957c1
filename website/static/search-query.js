// What is typed into the search is words. lunr takes - + : ^ ~ * for operators, so that --resume was an error, and asks for "to" as for "install".
"use strict";
(() => {
  const QUERY = 2; // Material's number for a message with what was typed
  const PAUSE = 120; // milliseconds: without a server a search holds the page up, so it waits for who types fast
  const SMALL = new Set("a an and are as at be by can do does for from how i in is it my of on or the this to what when where which why with you".split(" "));
  const LETTERS = { α: "alpha", β: "beta", γ: "gamma", λ: "lambda", σ: "sigma", θ: "theta" };
  const OTHER_NAME = { ...LETTERS, ...Object.fromEntries(Object.entries(LETTERS).map((pair) => pair.reverse())) };

  function words(typed) {
    const all = typed.replace(/[-+:^~*]+/g, " ").trim().toLowerCase().split(/\s+/);
    const telling = all.filter((word) => !SMALL.has(word));
    return (telling.length ? telling : all).flatMap((word) => (word in OTHER_NAME ? [word, OTHER_NAME[word]] : [word])).join(" ");
  }

  const Plain = window.Worker;
  window.Worker = class extends Plain {
    postMessage(message, ...rest) {
      if (message?.type !== QUERY) return super.postMessage(message, ...rest);
      clearTimeout(this.waiting);
      this.waiting = setTimeout(() => super.postMessage({ ...message, data: words(message.data) }, ...rest), PAUSE);
    }
  };

  // Material listens for keys: what is pasted, dictated or composed of several has none.
  addEventListener("input", ({ target }) => target.name === "query" && target.dispatchEvent(new Event("keyup")));
})();
